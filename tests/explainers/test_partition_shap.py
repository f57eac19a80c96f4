"""PartitionSHAP through the shap package: Owen values on small games, and a clear word when it is missing."""

import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

from veridical.errors import InputError, MissingExtraError
from veridical.explainers import PartitionShap, applicable
from veridical.explainers.partition_shap import halving_tree
from veridical.random.keyed import Key
from veridical.values.space import Space
from veridical.values.task import Task


def test_the_tree_halves_the_longer_side():
    tree = halving_tree(np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]))
    assert tree[:, :2].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert tree[:, 3].tolist() == [2, 2, 4]
    assert halving_tree(np.zeros((1, 1))).shape == (0, 4)


def test_a_missing_package_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "shap" else find(name, *a)
    )
    task = Task(nn.Linear(3, 2), torch.rand(2, 3))
    assert "veridical[shap]" in (PartitionShap().why_not(task) or "")
    assert "partition_shap" not in applicable(task)
    with pytest.raises(MissingExtraError, match="pip install"):
        PartitionShap()(task)


def test_budget_is_checked():
    with pytest.raises(InputError):
        PartitionShap(3)


@pytest.mark.extras
def test_additive_model_and_conservation():
    pytest.importorskip("shap")
    torch.manual_seed(0)
    model, x = nn.Linear(6, 3).double(), torch.randn(3, 6).double()
    task = Task(model, x, fill=0.0)
    found = PartitionShap()(task, Key(0))
    assert torch.allclose(found.values, x * model.weight[task.targets].detach(), atol=1e-6)
    deep = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    image = Task(deep, torch.rand(2, 1, 6, 6).double(), space=Space.patches((1, 6, 6), 2))
    values = PartitionShap()(image, Key(0)).values
    fall = image.outputs - deep(torch.zeros(1, 1, 6, 6).double())
    assert torch.allclose(values.sum(-1), fall.gather(1, image.targets[:, None])[:, 0].detach(), atol=1e-6)


@pytest.mark.extras
def test_owen_values_of_a_game_of_four():
    pytest.importorskip("shap")

    # players 0 and 1 form one union, 2 and 3 the other; the pair (1, 2) earns 1 together
    def pair(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, 1] * x[:, 2] + x[:, 0], x[:, 3]], 1)

    task = Task(pair, torch.ones(1, 4).double(), targets=[0], fill=0.0)
    values = PartitionShap()(task, Key(0)).values[0]
    assert torch.allclose(values, torch.tensor([1.0, 0.5, 0.5, 0.0]).double(), atol=1e-6)


@pytest.mark.extras
def test_batches_and_global_generators_do_not_matter():
    pytest.importorskip("shap")
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
    np.random.seed(5)  # noqa: NPY002
    for i in range(4):
        assert torch.allclose(PartitionShap(20)(task[[i]], Key(0)).values[0], whole[i], atol=1e-9)
    assert (whole[~valid] == 0).all()
