"""PartitionSHAP: Owen values on small games, parity with the shap package, few calls of the model."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from veridical.errors import InputError
from veridical.explainers import ExactShapley, PartitionShap
from veridical.explainers.partition_shap import TOGETHER, halving_order, rows_of_tree
from veridical.random.keyed import Key
from veridical.values.space import Space
from veridical.values.task import Task


def test_the_tree_halves_the_longer_side() -> None:
    assert halving_order(np.array([[0.0, 3.0], [0.0, 1.0], [0.0, 2.0], [0.0, 0.0]])).tolist() == [3, 1, 2, 0]
    # two rows of four: first left and right, then up and down or left and right again
    grid = np.array([[i, j] for i in range(2) for j in range(4)], dtype=float)
    assert halving_order(grid).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert halving_order(np.zeros((1, 1))).tolist() == [0]


def test_rows_of_a_whole_tree() -> None:
    assert [rows_of_tree(n) for n in (1, 2, 3, 4)] == [0, 2, 6, 10]


def test_budget_is_checked() -> None:
    with pytest.raises(InputError):
        PartitionShap(3)


def test_additive_model_and_conservation() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(6, 3).double(), torch.randn(3, 6).double()
    task = Task(model, x, fill=0.0)
    found = PartitionShap()(task, Key(0))
    assert torch.allclose(found.values, x * model.weight[task.targets].detach(), atol=1e-6)
    deep = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    image = Task(deep, torch.rand(2, 1, 6, 6).double(), space=Space.patches((1, 6, 6), 2))
    for budget in (4, 7, 20, 512):
        law = PartitionShap(budget)(image, Key(0)).provenance["law"]
        assert law["largest_residual"] < 1e-6


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
    assert found.cost.forward == explainer.declared(task).forward == 30 * 101
    assert own.calls <= 5 + 100 / TOGETHER


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
