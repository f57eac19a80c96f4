"""RIS, ROS and RRS: rewrites, excluded draws, the representation, counts."""

import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference import metrics as robustness
from tests.reference.metric_cases import linear_task, mlp_task, one_gradient, seeded
from veridical.core.key import Key
from veridical.explainers import Gradient
from veridical.metrics import (
    RelativeInputStability,
    RelativeOutputStability,
    RelativeRepresentationStability,
)
from veridical.metrics.robustness._common import representations

KINDS = [RelativeInputStability, RelativeOutputStability, RelativeRepresentationStability]
NAMES = [kind.name for kind in KINDS]


def reading(kind, task: vd.Task, x: torch.Tensor) -> list[float]:
    row = x[None]
    if kind is RelativeInputStability:
        return x.tolist()
    if kind is RelativeOutputStability:
        return task.model(row)[0].tolist()
    return task.model[:-1](row)[0].tolist()


def by_hand(metric, task: vd.Task, exclude: bool = True) -> torch.Tensor:
    key = Key(0) / metric.name
    near = [metric.neighbours(task, key, range(k, k + 1)).inputs for k in range(1, metric.draws + 1)]
    kind, out = type(metric), []
    for i, target in enumerate(task.targets.tolist()):
        x = task.inputs[i]
        clean = one_gradient(task, x, target).tolist()
        moved = [one_gradient(task, n[i], target).tolist() for n in near]
        changes = []
        for n in near:
            before, after = reading(kind, task, x), reading(kind, task, n[i])
            if kind is RelativeOutputStability:
                changes.append(robustness.norm([b - a for b, a in zip(before, after, strict=True)]))
            else:
                changes.append(robustness.relative(before, after, metric.epsilon))
        own = task.model(x[None]).argmax().item()
        same = [not exclude or task.model(n[i][None]).argmax().item() == own for n in near]
        out.append(robustness.stability(clean, moved, changes, same, metric.epsilon))
    return torch.tensor(out, dtype=torch.float64)


def assert_by_hand(metric, exclude: bool = True) -> vd.Scores:
    task = mlp_task(rows=24)
    scores = metric(task, Gradient())
    torch.testing.assert_close(
        scores.values, by_hand(metric, task, exclude), rtol=1e-7, atol=1e-12, equal_nan=True
    )
    return scores


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_definition_by_hand_and_leaves_out_changed_predictions(kind) -> None:
    scores = assert_by_hand(kind(draws=8, radius=1.5))
    share = scores.details["share of draws kept"]
    assert ((share > 0) & (share < 1)).any()  # the exclusion was put to the test
    with pytest.raises(AssertionError):
        assert_by_hand(kind(draws=8, radius=1.5), exclude=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_a_linear_model_is_perfectly_stable(name: str) -> None:
    assert vd.score(name, linear_task(), "gradient", radius=0.01).values.abs().max() < 1e-9


def test_for_a_linear_model_the_representation_is_the_input() -> None:
    task = linear_task()
    settings = {"draws": 3, "radius": 0.05}
    seed_of = {n: vd.score(n, task, "input_x_gradient", **settings) for n in NAMES}
    before, outputs = representations(task)
    assert torch.equal(before, task.inputs)
    torch.testing.assert_close(outputs, task.outputs)
    assert (seed_of["relative_representation_stability"].values > 0).all()


def test_all_draws_excluded_is_no_score() -> None:
    # the sign of x decides, and inputs lie so close to 0 that noise carries them across
    net = nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    task = vd.Task(net, torch.tensor([[1e-9], [5.0]], dtype=torch.float64))
    for seed in range(20):
        scores = vd.score("relative_input_stability", task, "input_x_gradient", draws=1, seed=seed)
        if scores.values[0].isnan():
            break
    assert scores.flags["every draw changed the prediction"].tolist() == [True, False]
    assert not scores.values[1].isnan()


@pytest.mark.parametrize(("name", "passes"), [(NAMES[0], 3), (NAMES[1], 3), (NAMES[2], 4)])
def test_counts(name: str, passes: int) -> None:
    # explanations at x and 3 neighbours, and outputs at the neighbours; RRS reads the clean layer too
    cost = vd.score(name, mlp_task(rows=6), "gradient", draws=3).cost
    assert (cost.forward, cost.backward) == ((4 + passes) * 6, 4 * 6)


def test_a_layer_can_be_named_and_must_exist() -> None:
    task = mlp_task()
    named, _ = representations(task, "3")  # the tanh before the last linear layer
    assert torch.equal(named, representations(task)[0])
    other = vd.score("relative_representation_stability", task, "gradient", layer="1", draws=2).values
    assert not torch.equal(
        other, vd.score("relative_representation_stability", task, "gradient", draws=2).values
    )
    with pytest.raises(vd.errors.NotApplicableError, match="layer"):
        vd.score("relative_representation_stability", task, "gradient", layer="nowhere")
    noisy = task.with_noise(0.1, Key(0))
    assert representations(noisy, "3")[0].shape == named.shape


def test_without_a_linear_layer_it_says_so() -> None:
    net = seeded(nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten()))
    task = vd.Task(net, torch.rand(2, 1, 4, 4).double())
    with pytest.raises(vd.errors.NotApplicableError, match="layer="):
        vd.score("relative_representation_stability", task, "gradient")


def test_multilabel_predictions_must_all_stay_and_regression_keeps_everything() -> None:
    many = mlp_task(head="multilabel")
    share = vd.score(NAMES[0], many, "gradient", draws=4, radius=0.8).details["share of draws kept"]
    assert (share < 1).any()
    real = mlp_task(head="regression", targets=0)
    share = vd.score(NAMES[0], real, "gradient", draws=4, radius=0.8).details["share of draws kept"]
    assert (share == 1).all()
