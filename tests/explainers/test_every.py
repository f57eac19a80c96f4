"""What holds of every registered explainer: weight noise, chunks, declared facts, refusals; the cache."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference.small_nets import image_task, noisy_copy
from veridical.errors import NotApplicableError, VeridicalWarning
from veridical.explainers import (
    PermutationImportance,
    applicable,
    registry,
)
from veridical.explainers.diagnostics import check_completeness
from veridical.explainers.occlusion import FitsBank, MaskingExplainer
from veridical.testing import tiny_task

EVERY = sorted(registry)
# on images of this model they do not apply
TEXT = {"attention_rollout", "gradient_x_attention", "reagent", "tree_shap", "value_zeroing"}
OF_FEW = {"exact_shapley"}  # its own are in test_exact_shapley.py
ON_IMAGES = [name for name in EVERY if name not in TEXT | OF_FEW]
FEW: dict[str, dict[str, int]] = {
    "lime": {"draws": 40},
    "hsic": {"draws": 40},
    "sobol": {"draws": 4, "grid": 4},
    "shapley_sampling": {"orders": 2},
    "deeplift_shap": {"baselines": 3},
    "permutation_importance": {"rows": 2},
    "rise": {"draws": 40},
    "kernel_shap": {"budget": 140},
}


def made(name: str, task: vd.Task) -> vd.Explainer:
    explainer = registry.make(name, **FEW.get(name, {}))
    assert explainer.inapplicable_reason(task) is None
    return explainer


@pytest.mark.parametrize("name", ON_IMAGES)
def test_under_weight_noise_equals_a_noisy_deep_copy(name: str) -> None:
    task = image_task(samples=3)
    explainer = made(name, task)
    noisy, twin = noisy_copy(task, 0.3, vd.core.Key(4))
    found = explainer(noisy, vd.core.Key(1)).values
    torch.testing.assert_close(found, explainer(twin, vd.core.Key(1)).values, rtol=0, atol=1e-9)
    follows = not explainer.control or name == "moving_noise"  # a control that moves with the outputs
    assert follows != torch.equal(found, explainer(task, vd.core.Key(1)).values)


@pytest.mark.parametrize("name", EVERY)
def test_a_plain_function_is_explained_without_gradients_or_refused(name: str) -> None:
    weights = torch.randn(128, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    like = image_task(samples=3)
    task = vd.Task(lambda x: x.reshape(len(x), -1) @ weights, like.inputs.numpy(), train=like.train.numpy())
    explainer = registry.make(name, **FEW.get(name, {}))
    needs = explainer.needs & {"gradient", "convolution", "attention"}
    if not needs and name not in {"tree_shap", "reagent"} | OF_FEW:
        assert bool(explainer(task).values.isfinite().all())
    elif needs:
        with pytest.raises(NotApplicableError, match="These do:") as refusal:
            explainer(task)
        told = str(refusal.value).split("These do: ")[1].split(", ")
        assert told == applicable(task)
        assert name not in told


@pytest.mark.parametrize("kind", ["image", "series", "table", "text"])
def test_declared_rows_are_the_rows_counted(kind: str) -> None:
    task = tiny_task(kind)
    for name in applicable(task):
        explainer = registry.make(name, **FEW.get(name, {}))
        declared, cost = explainer._declared(task), explainer(task).cost
        few = bool((task.space.counts(len(task)) <= FEW_FEATURES).any())
        few |= isinstance(explainer, FitsBank) and explainer.unknowns(task) <= FEW_FEATURES
        if few and isinstance(explainer, BY_MASKS):
            # of few features no mask is asked twice, so that rows declared are the most there can be
            assert cost.forward <= declared.forward, name
        else:
            assert cost == declared, name


@pytest.mark.parametrize("name", ["exact_shapley", "feature_ablation", "kernel_shap", "lime", "occlusion"])
def test_rows_are_known_with_a_fill_of_several_rows(name: str) -> None:
    task = vd.Task(nn.Linear(14, 3), torch.rand(3, 14), train=torch.rand(5, 14))
    assert task.fill.repeats_on(task) == 5
    if name == "exact_shapley":
        task = vd.Task(nn.Linear(4, 3), torch.rand(3, 4), train=torch.rand(5, 4))
    explainer = registry.make(name)
    assert explainer(task).cost == explainer._declared(task)


BY_MASKS = (MaskingExplainer, PermutationImportance)
FEW_FEATURES = 12
COMPLETE = {"deeplift": 1e-9, "deeplift_shap": 1e-9, "integrated_gradients": 0.05, "shapley_sampling": 1e-6}


@pytest.mark.parametrize("name", sorted(COMPLETE))
def test_every_map_carries_its_completeness(name: str) -> None:
    task = image_task(samples=3)
    enough = {**FEW, "integrated_gradients": {"steps": 256}}
    explainer = registry.make(name, **enough.get(name, {}))
    found = explainer(task).provenance["completeness"]
    assert found["states"] == explainer.completeness
    assert found["largest_residual"] <= COMPLETE[name]
    assert found["broken"] == 0
    assert explainer(task).cost == explainer(task.with_targets(task.targets)).cost  # the check is not counted


def test_a_map_that_misses_completeness_is_counted() -> None:
    task = image_task(samples=3)
    coarse = registry.make("integrated_gradients", steps=1, rule="left")(task).provenance["completeness"]
    assert coarse["broken"] == 3
    assert coarse["mean_residual"] > 0.05
    # relevance is conserved where nothing but the input can take it
    biased = registry.make("lrp_epsilon")(task).provenance["completeness"]
    with torch.no_grad():
        for name, value in task.model.named_parameters():
            if name.endswith("bias"):
                value.zero_()
    plain = registry.make("lrp_epsilon")(image_task(task.model, samples=3)).provenance["completeness"]
    assert plain["largest_residual"] < 1e-3 < biased["largest_residual"]


def test_values_that_cancel_as_they_should_are_no_fault() -> None:
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[5.0, -5.0], [0.0, 0.0]]))
    even = vd.explain("exact_shapley", vd.Task(net, torch.ones(1, 2), targets=[0]))
    assert even.values.tolist() == [[5.0, -5.0]]
    assert even.provenance["completeness"]["broken"] == 0
    values = torch.tensor([[1e9, -1e9], [1.0, 1.0]])
    with pytest.warns(VeridicalWarning, match=r"1 of 2 maps hand out 1e\+06 times what they sum to"):
        found = check_completeness("name", "they sum to it", True, torch.tensor([0.0, 2.0]), values)
    assert found["completeness"]["broken"] == 1
