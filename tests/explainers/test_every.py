"""What holds of every registered explainer: weight noise, chunks, declared facts, refusals; the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import mlp
from tests.reference.small_nets import conv_net, image_task, noisy_copy
from veridical.core.key import Key
from veridical.errors import NotApplicableError, VeridicalWarning
from veridical.explainers import (
    ExplanationCache,
    IntegratedGradients,
    Occlusion,
    PermutationImportance,
    applicable,
    registry,
)
from veridical.explainers.diagnostics import check_completeness
from veridical.explainers.occlusion import FitsCells, MaskingExplainer
from veridical.models.predictor import Plan
from veridical.testing import tiny_task

EVERY = sorted(registry)
PACKAGE = {"tree_shap"}
TEXT = {"attention_rollout", "gradient_x_attention", "tree_shap"}  # on images of this model they do not apply
OF_FEW = {"exact_shapley"}  # its own are in test_exact_shapley.py
ON_IMAGES = [
    pytest.param(name, marks=pytest.mark.extras) if name in PACKAGE else name
    for name in EVERY
    if name not in TEXT | OF_FEW
]
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


class Watched(nn.Module):
    """Notes how many rows it is given at once."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv_net()
        self.most = 0

    def forward(self, x: Tensor) -> Tensor:
        self.most = max(self.most, len(x))
        return self.net(x)


@pytest.mark.parametrize("name", ON_IMAGES)
def test_no_call_is_larger_than_the_plan_and_chunks_do_not_matter(name: str) -> None:
    net = Watched()
    task = image_task(net, plan=Plan(rows=8), samples=20)
    explainer = made(name, task)
    net.most = 0
    found = explainer(task)
    cost = found.cost
    assert net.most <= 8
    many = explainer(task.with_plan(Plan(rows=64)))
    torch.testing.assert_close(found.values, many.values, rtol=0, atol=1e-9)
    assert cost == many.cost
    assert bool(cost.backward) == ("gradient" in explainer.needs)
    assert bool(cost.forward) != explainer.control


@pytest.mark.parametrize("name", EVERY)
def test_a_plain_function_is_explained_without_gradients_or_refused(name: str) -> None:
    weights = torch.randn(128, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    like = image_task(samples=3)
    task = vd.Task(lambda x: x.reshape(len(x), -1) @ weights, like.inputs.numpy(), train=like.train.numpy())
    explainer = registry.make(name, **FEW.get(name, {}))
    needs = explainer.needs & {"gradient", "convolution", "attention"}
    if not needs and name not in PACKAGE | OF_FEW:
        assert bool(explainer(task).values.isfinite().all())
    elif needs:
        with pytest.raises(NotApplicableError, match="These do:") as refusal:
            explainer(task)
        told = str(refusal.value).split("These do: ")[1].split(", ")
        assert told == applicable(task)
        assert name not in told


def test_by_name_by_object_and_by_function() -> None:
    task = image_task(samples=2)

    def mine(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        x = inputs.detach().requires_grad_(True)
        return torch.autograd.grad(model(x).gather(1, targets[:, None]).sum(), x)[0]

    by_name = vd.explain("gradient", task)
    for other in (registry.make("gradient"), mine):
        found = vd.explain(other, task)
        torch.testing.assert_close(found.values, by_name.values, rtol=0, atol=1e-12)
        assert found.cost == by_name.cost


@pytest.mark.parametrize("kind", ["image", "series", "table", "text"])
def test_declared_rows_are_the_rows_counted(kind: str) -> None:
    task = tiny_task(kind)
    for name in applicable(task):
        explainer = registry.make(name, **FEW.get(name, {}))
        declared, cost = explainer._declared(task), explainer(task).cost
        few = bool((task.space.counts(len(task)) <= FEW_FEATURES).any())
        few |= isinstance(explainer, FitsCells) and explainer.unknowns(task) <= FEW_FEATURES
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


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def files(folder: Path) -> int:
    return len(list(folder.glob("*.safetensors")))


def test_the_second_time_asks_the_model_nothing(tmp_path: Path) -> None:
    task = vd.Task(mlp(), X)
    made = vd.explain("integrated_gradients", task, cache=tmp_path)
    fresh = vd.Task(mlp(), X)
    found = vd.explain("integrated_gradients", fresh, cache=tmp_path)
    assert fresh.predictor.meter.here.forward == 0
    assert torch.equal(found.values, made.values)
    assert torch.equal(found.order, made.order)
    assert found.cost == made.cost
    assert files(tmp_path) == 1


class Scaled(nn.Module):
    """Its answer depends on a plain attribute that no weight and no repr shows."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.inner = mlp()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


def test_everything_that_matters_makes_a_file_of_its_own(tmp_path: Path) -> None:
    task = vd.Task(mlp(), X)
    cache = ExplanationCache(tmp_path)
    steps = IntegratedGradients(steps=4)
    cases = [
        (steps, task, Key(0)),
        (steps, task, Key(1)),
        (IntegratedGradients(steps=5), task, Key(0)),
        (steps, vd.Task(mlp(seed=1), X), Key(0)),
        (steps, vd.Task(mlp(), X + 0.1), Key(0)),
        (steps, task.with_noise(0.5, Key(0)), Key(0)),
        (steps, task.with_targets((task.targets + 1) % 3), Key(0)),
        (steps, task.with_plan(Plan(rows=8)), Key(0)),
        (steps, vd.Task(Scaled(1.0), X), Key(0)),
        (steps, vd.Task(Scaled(2.0), X), Key(0)),
    ]
    paths = {cache.path(*case) for case in cases}
    assert len(paths) == len(cases)
    assert cache.path(steps, vd.Task(mlp(), X.clone()), Key(0)) == cache.path(*cases[0])


def test_estimators_that_agree_on_the_inputs_are_still_told_apart(tmp_path: Path) -> None:
    rows = X.numpy()
    y = (rows[:, 0] > 0).astype(int)
    models = [LogisticRegression(C=c).fit(rows, y) for c in (1.0, 1e-3)]
    trees = [DecisionTreeClassifier(random_state=s, splitter="random").fit(rows, y) for s in (0, 3)]
    tasks = [vd.Task(m, rows, targets=0) for m in (*models, *trees)]
    assert torch.equal(tasks[2].outputs, tasks[3].outputs)
    maps = [vd.explain("occlusion", t, cache=tmp_path).values for t in tasks]
    assert files(tmp_path) == 4
    again = [vd.explain("occlusion", t, cache=tmp_path).values for t in tasks]
    assert all(torch.equal(a, b) for a, b in zip(maps, again, strict=True))


def test_where_a_users_function_takes_part_nothing_is_kept(tmp_path: Path) -> None:
    module = vd.Task(mlp(), X)
    function = vd.Task(lambda x: x[:, :3] * 2, X)
    filled = [vd.Task(mlp(), X, fill=lambda x, removed, v=v: torch.where(removed, v, x)) for v in (0.0, 9.0)]
    vd.explain(lambda model, inputs, targets: inputs, module, cache=tmp_path)
    vd.explain("occlusion", function, cache=tmp_path)
    first, second = (vd.explain("occlusion", t, cache=tmp_path).values for t in filled)
    assert not torch.equal(first, second)
    assert files(tmp_path) == 0


def test_a_spoiled_file_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = vd.Task(mlp(), X)
    made = vd.explain("occlusion", task, cache=tmp_path)
    path = ExplanationCache(tmp_path).path(Occlusion(), task, Key(0))
    path.write_bytes(b"spoiled")
    with caplog.at_level("WARNING", "veridical"):
        again = vd.explain("occlusion", task, cache=tmp_path)
    assert torch.equal(again.values, made.values)
    assert "made again" in caplog.text
    assert torch.equal(vd.Explanation.load(path).values, made.values)
