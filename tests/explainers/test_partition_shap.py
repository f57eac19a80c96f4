"""PartitionSHAP: Owen values on small games, parity with the shap package, few calls of the model."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.reference.explainers import halving_order, owen_values
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.explainers import ExactShapley, PartitionShap
from veridical.explainers.partition_shap import TOGETHER, rows_of_tree
from veridical.values.task import Task


def test_rows_of_a_whole_tree() -> None:
    assert [rows_of_tree(n) for n in (1, 2, 3, 4)] == [0, 2, 6, 10]


def test_additive_model_and_conservation() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(6, 3).double(), torch.randn(3, 6).double()
    task = Task(model, x, fill=0.0)
    found = PartitionShap()(task, Key(0))
    assert torch.allclose(found.values, x * model.weight[task.targets].detach(), atol=1e-6)
    deep = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    image = Task(deep, torch.rand(2, 1, 6, 6).double(), space=Space.patches((1, 6, 6), 2))
    for budget in (4, 7, 20, 512):
        complete = PartitionShap(budget)(image, Key(0)).provenance["completeness"]
        assert complete["largest_residual"] < 1e-6


def test_owen_values_of_a_game_of_four() -> None:
    # players 0 and 1 form one union, 2 and 3 the other; the pair (1, 2) earns 1 together
    def pair(x: Tensor) -> Tensor:
        return torch.stack([x[:, 1] * x[:, 2] + x[:, 0], x[:, 3]], 1)

    task = Task(pair, torch.ones(1, 4).double(), targets=[0], fill=0.0)
    values = PartitionShap()(task, Key(0)).values[0]
    assert torch.allclose(values, torch.tensor([1.0, 0.5, 0.5, 0.0]).double(), atol=1e-6)


def test_of_two_features_they_are_shapley_values() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    task = Task(net, torch.randn(5, 2).double(), fill=0.0)
    torch.testing.assert_close(PartitionShap()(task).values, ExactShapley()(task).values)


class Counted(nn.Module):
    """Counts its calls."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.calls = net, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x)


def images(samples: int, net: nn.Module | None = None) -> Task:
    torch.manual_seed(1)
    deep = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model = deep if net is None else net
    return Task(model, torch.rand(samples, 1, 8, 8).double(), fill=0.0)


def test_samples_and_masks_share_calls() -> None:
    net = Counted(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3)).double())
    task = images(30, net)
    explainer = PartitionShap(102)
    _ = task.outputs
    own = task.predictor.unwrapped
    own.calls = 0
    found = explainer(task)
    assert found.cost.forward == explainer._declared(task).forward == 30 * 101
    assert own.calls <= 5 + 100 / TOGETHER


def test_many_samples_are_explained_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    task = images(5)
    whole = PartitionShap(30)(task).values
    monkeypatch.setattr(sys.modules[PartitionShap.__module__], "_MASKED_FEATURES", 2 * TOGETHER * 64)
    assert [len(piece) for piece in PartitionShap(30)._pieces(task)] == [2, 2, 1]
    torch.testing.assert_close(PartitionShap(30)(task).values, whole, rtol=0, atol=1e-9)


def test_a_sample_alone_and_among_others_is_explained_alike() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    valid = torch.ones(4, 9, dtype=torch.bool)
    valid[1, 5:] = False
    valid[2, 1:] = False
    space = Space("column", (9,), 9, torch.arange(9), valid=valid)
    task = Task(model, torch.randn(4, 9).double(), fill=0.0, space=space)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    whole = PartitionShap(20)(task, Key(0)).values
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    for i in range(4):
        assert torch.allclose(PartitionShap(20)(task[[i]], Key(0)).values[0], whole[i], atol=1e-9)
    assert (whole[~valid] == 0).all()


def slowly(task: Task, budget: int) -> Tensor:
    """The maps by sets and lists, one row at a time."""
    space = task.space
    out = torch.zeros(len(task), space.n_features, dtype=torch.float64)
    sides = [torch.arange(n).double() for n in space.input_shape[1:]]
    for i, x in enumerate(task.inputs):
        own, target = space.take(slice(i, i + 1)), int(task.targets[i])
        features = torch.arange(space.n_features)
        features = features if own.valid is None else features[own.valid[0]]
        if task.modality == "image":
            maps = [m.expand(1, *space.input_shape) for m in torch.meshgrid(*sides, indexing="ij")]
            places = torch.stack([own.pool(m, "mean")[0] for m in maps], -1)[features]
        else:
            places = features[:, None].double()
        everyone = set(features.tolist())

        def ask(there: frozenset[int], x: Tensor = x, own: Any = own, everyone: Any = everyone) -> float:
            gone = torch.zeros(1, own.n_features, dtype=torch.bool)
            gone[0, list(everyone - there)] = True
            with torch.no_grad():
                row = torch.where(own.expand(gone), torch.zeros_like(x), x)
                return float(task.predictor.outputs(row)[0, target])  # noqa: B023 (asked within this turn)

        order = [int(features[j]) for j in halving_order(places.numpy())]
        for feature, value in owen_values(order, ask, ask(frozenset(everyone)), budget).items():
            out[i, feature] = value
    return out


def odd_tasks() -> dict[str, Task]:
    """Features that differ in number from sample to sample, and lie anywhere."""
    torch.manual_seed(3)
    deep = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    image = torch.rand(4, 1, 6, 8).double()
    labels = torch.randint(0, 20, (4, 1, 6, 8))
    held = torch.stack([torch.bincount(each.flatten(), minlength=20) > 0 for each in labels])
    held[2, 3:] = False
    labels[2][labels[2] > 2] = -1
    pieces = Space("superpixel", (1, 6, 8), 20, labels, per_sample=True, valid=held)
    flat = nn.Sequential(nn.Linear(14, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    valid = torch.arange(14) < torch.tensor([14, 1, 9, 3, 13])[:, None]
    table = Space("column", (14,), 14, torch.arange(14), valid=valid)
    return {
        "pixels": Task(deep, image, fill=0.0),
        "patches": Task(deep, image, fill=0.0, space=Space.patches((1, 6, 8), 2)),
        "superpixels": Task(deep, image, fill=0.0, space=pieces),
        "padded": Task(flat, torch.randn(5, 14).double(), fill=0.0, space=table),
    }


@pytest.mark.parametrize("budget", [4, 5, 9, 30, 101, 600])
@pytest.mark.parametrize("kind", ["pixels", "patches", "superpixels", "padded"])
def test_agrees_with_the_slow_one(kind: str, budget: int) -> None:
    task = odd_tasks()[kind]
    found = PartitionShap(budget)(task)
    torch.testing.assert_close(found.values, slowly(task, budget), rtol=0, atol=1e-7)
    assert found.cost == PartitionShap(budget)._declared(task)


def stairs(x: Tensor) -> Tensor:
    """Whole numbers, and few of them: many branches move the output by the same."""
    steps = x.flatten(1)
    total = (steps[:, 1:] * steps[:, :-1]).sum(-1)
    return torch.stack([total, -total], 1)


def tied() -> Task:
    # 64 neighbours, or 16 of which each counts 4: with so round a sum no answer is moved to a grid
    image = torch.ones(3, 1, 5, 13).double()
    image[1] = 0.0
    image[1].view(-1)[20:37] = 2.0
    return Task(stairs, image, targets=[0, 0, 1], fill=0.0)


@pytest.mark.parametrize("budget", [12, 40, 90])
def test_of_equals_the_first_comes_first(budget: int) -> None:
    task = tied()
    torch.testing.assert_close(PartitionShap(budget)(task).values, slowly(task, budget), rtol=0, atol=1e-7)


def by_shap(task: Task, budget: int) -> Tensor:
    """The same by the shap package, one sample after the other."""
    import shap

    features = task.space.n_features
    side = int(features**0.5)
    order = halving_order(np.array([[i, j] for i in range(side) for j in range(side)], dtype=float))
    merges: list[tuple[float, ...]] = []

    def merge(members: Any) -> int:
        if len(members) == 1:
            return int(members[0])
        half = len(members) // 2
        left, right = merge(members[:half]), merge(members[half:])
        merges.append((left, right, 1.0, len(members)))
        return features + len(merges) - 1

    merge(order)

    class Presence:
        clustering = np.array(merges, dtype=float)
        shape = (None, features)

        def __call__(self, mask: Any, row: Any) -> Any:
            return mask.astype(float)[None]

    out = []
    for x, target in zip(task.inputs, task.targets, strict=True):

        def ask(kept: Any, x: Tensor = x, target: Tensor = target) -> Any:
            shown = x * torch.as_tensor(kept).reshape(-1, 1, side, side)
            with torch.no_grad():
                return task.model(shown)[:, target].numpy()

        explained = shap.PartitionExplainer(ask, Presence())
        out.append(explained(np.ones((1, features)), max_evals=budget, silent=True).values[0])
    return torch.tensor(np.stack(out))


@pytest.mark.extras
@pytest.mark.parametrize("budget", [10, 101, 512, 20_000])
def test_agrees_with_shap(budget: int) -> None:
    pytest.importorskip("shap")
    task = images(3)
    found = PartitionShap(budget)(task).values
    torch.testing.assert_close(found, by_shap(task, budget), rtol=0, atol=2e-6)
