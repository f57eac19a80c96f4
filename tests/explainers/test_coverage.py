"""Every explainer on every architecture and on volumes: right by completeness or a reference, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference import detach_trick
from tests.reference.architectures import CONVOLUTIONAL, HUGGING_FACE, OTHERS, made
from tests.reference.coverage import CHECKS, LAWFUL
from veridical.core.space import Space
from veridical.explainers import (
    DeepLift,
    LrpEpsilon,
    Occlusion,
    applicable,
    registry,
)
from veridical.explainers.controls import image_edges

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
ATTENTION = {"attention_rollout", "gradient_x_attention", "value_zeroing"}
TRAIN = {"deeplift_shap", "expected_gradients", "permutation_importance"}
SMOOTH = {"convnext", "vit", "swin", "lstm", "gru", "hf_bert", "hf_roberta", "hf_gpt2", "hf_llama", "hf_vit"}
ATTENDING = {"vit", "encoder", *HUGGING_FACE}
TOKENS = {"encoder", "embedding_bag", *(set(HUGGING_FACE) - {"hf_vit"})}
GRIDLESS = {"lstm", "gru", "table"} | TOKENS
EVERY = [*CONVOLUTIONAL, *OTHERS, *(pytest.param(name, marks=pytest.mark.extras) for name in HUGGING_FACE)]
NAMES = [name for name in registry if name != "tree_shap"]


def refused(architecture: str) -> set[str]:
    """Who does not apply, and rightly so."""
    out = {"reagent"}  # it asks a language model for its answer
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
        out |= {"scorecam", "value_zeroing"}
    return out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", EVERY)
def test_every_cell_is_a_map_or_a_reason(architecture: str) -> None:
    task = made(architecture)
    expected = refused(architecture) | ({"exact_shapley"} if task.space.n_features > 12 else set())
    for name in NAMES:
        explainer = registry.make(name, **FEW.get(name, {}))
        reason = explainer.inapplicable_reason(task)
        assert (reason is not None) == (name in expected), f"{name}: {reason}"
        if reason is not None:
            assert len(reason) > 30
        elif name not in SLOW or task.space.n_features < 20:
            found = explainer(task)
            assert bool(found.values.isfinite().all()), name
            complete = found.provenance.get("completeness")
            if name in LAWFUL and architecture != "hf_llama":
                assert complete["largest_residual"] < 1e-5, name
                assert complete["broken"] == 0, name
            if name in CHECKS:
                CHECKS[name](made(architecture), found.values)


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


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")
def test_a_baseline_where_a_norm_blows_up_is_counted_as_broken() -> None:
    # an RMS norm divides by next to nothing at a baseline of zeros: values of 1e9 that cancel say nothing
    complete = DeepLift()(made("hf_llama")).provenance["completeness"]
    assert complete["broken"] > 0
    assert DeepLift(0.3)(made("hf_llama")).provenance["completeness"]["broken"] == 0


SIDE = 6
ENOUGH = {
    "lime": {"draws": 330},
    "rise": {"draws": 40},
    "kernel_shap": {"budget": 330},
    "hsic": {"draws": 40},
}


@pytest.fixture(scope="module")
def task() -> vd.Task:
    torch.manual_seed(0)
    layers = [nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 4, 3, padding=1)]
    net = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 27, 3))
    shape = (2, SIDE, SIDE, SIDE)
    masks = torch.rand(3, 1, SIDE, SIDE, SIDE) > 0.5
    return vd.Task(net, torch.rand(3, *shape), train=torch.rand(4, *shape), masks=masks)


def test_voxels_are_shared_over_channels_and_named_by_place(task: vd.Task) -> None:
    assert task.modality == "image"
    assert (task.space.kind, task.space.n_features) == ("voxel", SIDE**3)
    assert task.space.feature_name(1 * 36 + 2 * 6 + 3) == "voxel (1, 2, 3)"
    blocks = Space.patches((2, 4, 6, 6), 2)
    assert blocks.n_features == 2 * 3 * 3
    assert blocks.labels[0, 2, 0, 0] == 9
    assert blocks.labels[0, 0, 2, 4] == 5


@pytest.mark.filterwarnings("ignore")
def test_every_explainer_and_metric_that_applies_works_on_volumes(task: vd.Task) -> None:
    names = applicable(task)
    assert {"gradcam", "lrp", "deeplift", "guided_backprop", "occlusion", "rise", "sobel"} <= set(names)
    for name in names:
        explainer = registry.make(name, **ENOUGH.get(name, {}))
        found = explainer(task)
        assert found.values.shape == (3, SIDE**3), name
        assert found.cost == explainer._declared(task), name
    metrics = ("pixel_flipping", "deletion", "sensitivity_n", "infidelity", "sparseness", "pointing_game")
    for metric in metrics:
        assert bool(vd.score(metric, task, "gradient").values.isfinite().all()), metric
    with pytest.raises(vd.errors.VeridicalError, match=r"works on images"):
        vd.score("road", task, "gradient")


def test_a_window_is_a_cube(task: vd.Task) -> None:
    weights = torch.zeros(SIDE, SIDE, SIDE)
    weights[2, 2, 2] = 1.0
    linear = vd.Task(
        lambda x: torch.stack([(x[:, 0] * weights).sum((1, 2, 3)), x[:, 0, 0, 0, 0] * 0], 1),
        torch.ones(1, 1, SIDE, SIDE, SIDE),
        targets=[0],
        fill=0.0,
    )
    found = Occlusion(2, 2)(linear).maps()[0, 0]
    expected = torch.zeros_like(found)
    expected[2:4, 2:4, 2:4] = 1.0
    assert torch.equal(found, expected)


def test_edges_of_a_volume_are_those_of_its_slices() -> None:
    volume = torch.rand(2, 1, 3, 5, 5)
    edges = image_edges(volume)
    torch.testing.assert_close(edges[1, 2], image_edges(volume[1:, :, 2])[0])
