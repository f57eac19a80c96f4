"""Every explainer on every architecture: right by a law or a reference, or refused with the reason."""

import pytest
import torch

import veridical as vd
from tests.reference import detach_trick
from tests.reference.architectures import CONVOLUTIONAL, HUGGING_FACE, OTHERS, made
from tests.reference.coverage import CHECKS, ELSEWHERE, LAWFUL
from veridical.explainers import Deconvolution, DeepLift, GuidedBackprop, LrpEpsilon, registry

FEW = {
    "deeplift_shap": {"baselines": 2},
    "expected_gradients": {"samples": 4},
    "gradient_shap": {"samples": 4},
    "hsic": {"draws": 16, "grid": 2},
    "integrated_gradients": {"steps": 4},
    "kernel_shap": {"budget": 300},
    "lime": {"draws": 16},
    "partition_shap": {"budget": 8},
    "permutation_importance": {"rows": 1},
    "rise": {"draws": 16},
    "shapley_sampling": {"orders": 1},
    "sobol": {"draws": 2, "grid": 2},
}
SLOW = {"feature_ablation", "kernel_shap", "occlusion", "permutation_importance", "shapley_sampling"}
"""They ask about each feature and read nothing of the model: the four smallest inputs stand for all."""
CAM = {"gradcam", "gradcam_plus_plus", "layercam", "scorecam", "guided_gradcam"}
RECTIFIED = {"guided_backprop", "deconvolution", "guided_gradcam"}
ATTENTION = {"attention_rollout", "gradient_x_attention"}
TRAIN = {"deeplift_shap", "expected_gradients", "permutation_importance"}
SMOOTH = {"convnext", "vit", "swin", "lstm", "gru", "hf_bert", "hf_roberta", "hf_gpt2", "hf_llama", "hf_vit"}
ATTENDING = {"vit", "encoder", *HUGGING_FACE}
TOKENS = {"encoder", "embedding_bag", *(set(HUGGING_FACE) - {"hf_vit"})}
GRIDLESS = {"lstm", "gru", "table"} | TOKENS
EVERY = [*CONVOLUTIONAL, *OTHERS, *(pytest.param(name, marks=pytest.mark.extras) for name in HUGGING_FACE)]
NAMES = [name for name in registry if name != "tree_shap"]


def refused(architecture: str) -> set[str]:
    """Who does not apply, and rightly so."""
    out: set[str] = set()
    if architecture in GRIDLESS:
        out |= CAM
    if architecture in ("table", *TOKENS):
        out |= {"sobel"}
    if architecture in SMOOTH:
        out |= RECTIFIED
    if architecture not in ATTENDING:
        out |= ATTENTION
    if architecture in TOKENS:
        out |= TRAIN
    if architecture in ("vit", "hf_vit"):
        out |= {"scorecam"}
    return out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", EVERY)
def test_every_cell_is_a_map_or_a_reason(architecture: str) -> None:
    task = made(architecture)
    expected = refused(architecture) | ({"exact_shapley"} if task.space.n_features > 12 else set())
    for name in NAMES:
        explainer = registry.make(name, **FEW.get(name, {}))
        reason = explainer.why_not(task)
        assert (reason is not None) == (name in expected), f"{name}: {reason}"
        if reason is not None:
            assert len(reason) > 30
        elif name not in SLOW or task.space.n_features < 20:
            found = explainer(task)
            assert bool(found.values.isfinite().all()), name
            law, (_, check) = found.provenance.get("completeness"), CHECKS.get(name, (ELSEWHERE, None))
            if name in LAWFUL and architecture != "hf_llama":
                assert law["largest_residual"] < 1e-5, name
                assert law["broken"] == 0, name
            if check is not None:
                check(made(architecture), found.values)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", [name for name in EVERY if name not in ("lstm", "gru")])
def test_relevance_equals_the_gradient_of_a_model_with_detached_parts(architecture: str) -> None:
    task = made(architecture)
    # Hugging Face's RMS norm and rotary embedding compute in float32
    close = 1e-3 if architecture == "hf_llama" else 1e-5
    found, expected = LrpEpsilon(1e-12)(task).values, detach_trick.relevance(task)
    torch.testing.assert_close(found, expected, rtol=close, atol=close * float(expected.abs().max()))
    plain = vd.explain("input_x_gradient", task).values
    same = torch.allclose(found, plain, rtol=1e-3, atol=1e-6)
    assert same == (
        architecture in ("resnet", "vgg", "densenet", "googlenet", "unet", "tcn", "embedding_bag")
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "architecture",
    # the few rectifiers of the EfficientNet are all active, so its guided map is its gradient
    [n for n in [*CONVOLUTIONAL, *OTHERS] if "guided_backprop" not in refused(n) and n != "efficientnet"],
)
def test_rectifiers_are_found(architecture: str) -> None:
    task = made(architecture)
    found = GuidedBackprop()(task).values
    assert not torch.allclose(found, vd.explain("gradient", task).values, atol=1e-6)
    assert not torch.allclose(found, Deconvolution()(task).values, atol=1e-6)


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")
def test_a_baseline_where_a_norm_blows_up_is_counted_as_broken() -> None:
    # an RMS norm divides by next to nothing at a baseline of zeros: values of 1e9 that cancel say nothing
    law = DeepLift()(made("hf_llama")).provenance["completeness"]
    assert law["broken"] > 0
    assert DeepLift(0.3)(made("hf_llama")).provenance["completeness"]["broken"] == 0
