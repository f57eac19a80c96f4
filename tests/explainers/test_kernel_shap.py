"""KernelSHAP against Shapley's own definition."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.reference.shapley import exact_shapley
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import VeridicalWarning
from veridical.explainers import KernelShap, Lime
from veridical.perturb.fills import Constant, Token
from veridical.values.task import Task


def interacting(x: torch.Tensor) -> torch.Tensor:
    """Terms of one, two and three features, in two outputs."""
    y = 2 * x[:, 0] + 3 * x[:, 1] * x[:, 2] - x[:, 3] * x[:, 4] * x[:, 0] + torch.sin(x[:, 4])
    return torch.stack([y, -y + x[:, 2]], 1)


def game(task: Task, i: int, fill: float, valid=None):
    def value(group):
        keep = torch.tensor([f in group for f in range(task.space.n_features)])
        if valid is not None:
            keep = keep | ~valid
        row = torch.where(keep, task.inputs[i], torch.full_like(task.inputs[i], fill))
        with torch.no_grad():
            return float(task.predictor.model(row[None])[0, task.targets[i]])

    return value


def by_definition(task: Task, fill: float) -> torch.Tensor:
    rows = []
    for i in range(len(task)):
        valid = None if task.space.valid is None else task.space.valid[i]
        players = range(task.space.n_features) if valid is None else valid.nonzero()[:, 0].tolist()
        value = game(task, i, fill, valid)
        shares = exact_shapley(lambda kept: value(frozenset(players[k] for k in kept)), len(players))  # noqa: B023
        found = dict(zip(players, shares, strict=True))
        rows.append([found.get(f, 0.0) for f in range(task.space.n_features)])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.fixture
def table() -> Task:
    torch.manual_seed(0)
    return Task(interacting, torch.randn(4, 5).double(), targets=[0, 1, 0, 1], fill=Constant(0.3))


def test_all_subsets_give_the_shapley_values(table):
    found = KernelShap()(table, Key(0))
    assert torch.allclose(found.values, by_definition(table, 0.3), atol=1e-7)
    assert found.cost.forward == 4 * (2**5 - 1)


@pytest.mark.parametrize("budget", [7, 15, 30, 512])
def test_values_sum_to_the_fall_from_all_to_none(table, budget):
    found = KernelShap(budget)(table, Key(1))
    empty = interacting(torch.full_like(table.inputs, 0.3))
    fall = (table.outputs - empty).gather(1, table.targets[:, None])[:, 0]
    assert torch.allclose(found.values.sum(-1), fall, atol=1e-8)
    assert found.cost.forward <= 4 * budget


@pytest.mark.parametrize("budget", [81, 200])
def test_additive_models_are_solved_by_any_full_sample(budget):
    torch.manual_seed(1)
    model, x = nn.Linear(12, 3).double(), torch.randn(6, 12).double()
    task = Task(model, x, fill=Constant(-0.5))
    truth = (x + 0.5) * model.weight[task.targets].detach()
    assert torch.allclose(KernelShap(budget)(task, Key(0)).values, truth, atol=1e-7)


def test_sampling_converges_to_the_shapley_values():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    task = Task(model, torch.randn(3, 8).double(), fill=0.0)
    truth = KernelShap(512)(task, Key(0)).values
    errors = [
        torch.stack([(KernelShap(b)(task, Key(s)).values - truth).square().mean() for s in range(8)]).mean()
        for b in (19, 151)
    ]
    assert errors[1] < errors[0] / 4


def test_fewer_sets_than_features_still_gives_a_map():
    torch.manual_seed(3)
    image = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), torch.rand(2, 1, 8, 8))
    found = KernelShap(33)(image, Key(0))
    assert torch.isfinite(found.values).all()
    empty = image.predictor.model(torch.zeros(1, 1, 8, 8))[0, image.targets]
    fall = image.outputs.gather(1, image.targets[:, None])[:, 0] - empty
    assert torch.allclose(found.values.sum(-1), fall, atol=1e-4)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embed(ids).sum(1)))


def test_valid_tokens_only_whatever_else_is_in_the_batch():
    torch.manual_seed(4)
    model = Words().double()
    ids = torch.randint(1, 11, (4, 7))
    valid = torch.zeros(4, 7, dtype=torch.bool)
    for i, tokens in enumerate(([0, 1, 2], [1, 2, 4, 5], [3], list(range(7)))):
        valid[i, tokens] = True
    task = Task(model, ids, space=Space.tokens(7, valid), fill=Token(0))
    explain = KernelShap(40)
    found = explain(task, Key(0))
    truth = by_definition(task, 0)
    assert torch.allclose(found.values[:3], truth[:3], atol=1e-7)  # 2^4 sets fit, 2^7 do not
    assert (found.values[~valid] == 0).all()
    for i in range(4):
        alone = explain(task[[i]], Key(0))
        assert torch.allclose(alone.values[0], found.values[i], atol=1e-9)
    assert 7 + 15 + 1 < found.cost.forward <= 7 + 15 + 1 + 39  # a set drawn twice is asked once


def _mnist_like(side: int = 28) -> Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(side * side, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    return Task(net, torch.rand(3, 1, side, side).double(), fill=0.0)


@pytest.mark.parametrize("explainer", [KernelShap(), Lime()], ids=["kernel_shap", "lime"])
def test_more_pixels_than_rows_can_tell_apart_are_joined_and_it_is_said(explainer: Any) -> None:
    task = _mnist_like()
    found = explainer(task, Key(0))
    assert "784 features were joined into" in found.provenance["cells"]
    joined = explainer.cells_of(task)
    assert joined.count == explainer.unknowns(task) == 36
    for cell in range(36):
        values = found.values[:, joined.of == cell]
        assert torch.equal(values, values[:, :1].expand_as(values))
    assert found.cost == explainer._declared(task)

    def agreement(one: Any) -> float:
        maps = [one(task, Key(seed)).values for seed in (0, 1)]
        alike = [torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(*maps, strict=True)]
        return float(torch.stack(alike).mean())

    alone = replace(explainer, join=False)
    with pytest.warns(VeridicalWarning, match="responses for 784 features"):
        one_by_one = alone(task)
    assert "underdetermined" in one_by_one.provenance
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert agreement(explainer) > agreement(alone) + 0.3


def test_joined_pixels_keep_the_sum_and_patches_are_joined_too() -> None:
    task = _mnist_like()
    assert KernelShap()(task).provenance["completeness"]["largest_residual"] < 1e-6
    patches = task.with_space(Space.patches((1, 28, 28), 2))
    assert KernelShap().unknowns(patches) == 25
    assert KernelShap(budget=2000).unknowns(patches) == 196
    sizes = KernelShap().cells_of(patches).of.bincount()
    assert sizes.tolist() == [side * other for side in (3, 3, 3, 3, 2) for other in (3, 3, 3, 3, 2)]
    # of 8 x 8 digits every pixel has the 8 rows it needs
    assert KernelShap().cells_of(_mnist_like(8)) is None


@pytest.mark.parametrize("features", [11, 30])
def test_what_is_owed_to_the_number_of_features_is_no_noise(features: int) -> None:
    # y = g(number of features) + w.x: the Shapley values are w_i x_i + (g(D) - g(0)) / D
    torch.manual_seed(5)
    weights = torch.randn(features).double()

    def model(x: Tensor) -> Tensor:
        share = x.mean(-1)
        y = 50 * share**3 - 20 * share**2 + 5 * share + x @ weights
        return torch.stack([y, -y], 1)

    task = Task(model, torch.ones(2, features).double(), targets=[0, 0], fill=0.0)
    found = KernelShap(budget=200)(task, Key(0))
    torch.testing.assert_close(found.values, (weights + 35 / features).expand(2, -1), rtol=0, atol=1e-6)
    assert found.provenance["repeatability"]["smallest"] > 0.999


@pytest.mark.parametrize("explainer", [KernelShap(20), Lime(20)], ids=["kernel_shap", "lime"])
def test_few_rows_leave_a_map(explainer: Any) -> None:
    task = _mnist_like(12)
    assert explainer.unknowns(task) == 9
    found = explainer(task)
    assert len(found.values[0].unique()) == 9
