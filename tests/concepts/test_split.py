"""Splitting a model at its head."""

from __future__ import annotations

import pytest
import torch
from sklearn.dummy import DummyClassifier
from torch import nn

import veridical as vd
from veridical.errors import InputError, NotApplicableError, UnknownNameError


class Pooled(nn.Module):
    """A convolution, the mean over positions, and a linear head."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3)
        self.relu = nn.ReLU()
        self.extra = nn.Linear(5, 5)
        self.fc = nn.Linear(5, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.relu(self.conv(x)).mean((2, 3)))


def task_of(model: nn.Module, *shape: int, rows: int = 11, **options) -> vd.Task:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.rand(rows, *shape, generator=draw)
    return vd.Task(model, inputs, train=torch.rand(9, *shape, generator=draw), **options)


def test_the_last_linear_layer_that_runs_is_found():
    torch.manual_seed(0)
    model = Pooled()
    task = task_of(model, 1, 8, 8, plan=vd.Plan(rows=8))
    parts = vd.concepts.split(task)
    assert (parts.layer, parts.map_layer) == ("fc", "relu")
    assert torch.equal(parts.head.weight, model.fc.weight.detach().double())
    maps = model.relu(model.conv(task.inputs))
    assert torch.allclose(parts.test().values, maps.mean((2, 3)), atol=1e-6)
    assert torch.allclose(parts.test(spatial=True).values, maps.flatten(2).mT, atol=1e-6)


def test_every_row_is_counted_once():
    task = task_of(Pooled(), 1, 8, 8, plan=vd.Plan(rows=8))
    before = task.predictor.meter.here.forward
    parts = vd.concepts.split(task)
    parts.train()
    assert task.predictor.meter.here.forward - before == 11 + 9
    parts.test()
    assert task.predictor.meter.here.forward - before == 11 + 9


def test_binary_heads_have_two_mirrored_columns():
    for outputs in (1, 2):
        task = task_of(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs)), 4, head="binary")
        parts = vd.concepts.split(task)
        assert torch.equal(parts.head.weight[0], -parts.head.weight[1])
        assert torch.allclose(parts.head.outputs(parts.test().values).float(), task.outputs, atol=1e-5)


def test_noisy_weights_give_the_noisy_head():
    task = task_of(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), 4)
    noisy = task.with_noise(0.3, vd.core.Key(0))
    parts = vd.concepts.split(noisy)
    assert torch.allclose(parts.head.outputs(parts.test().values).float(), noisy.outputs, atol=1e-5)
    assert not torch.allclose(parts.head.weight, vd.concepts.split(task).head.weight)


def test_heads_that_are_not_linear_are_refused():
    after = task_of(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Softmax(-1)), 4)
    with pytest.raises(NotApplicableError, match=r"the head is not linear: .*first_order=True"):
        vd.concepts.split(after)
    none = task_of(nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), 1, 8, 8)
    with pytest.raises(NotApplicableError, match="not an affine function of what a linear layer"):
        vd.concepts.split(none)
    with pytest.raises(UnknownNameError, match="linear layer"):
        vd.concepts.split(task_of(Pooled(), 1, 8, 8), "conv")
    with pytest.raises(NotApplicableError, match="not a torch model"):
        vd.concepts.split(vd.Task(DummyClassifier().fit([[0.0], [1.0]], [0, 1]), torch.rand(4, 1).numpy()))
    flat = task_of(nn.Sequential(nn.Linear(4, 3)), 4)
    with pytest.raises(NotApplicableError, match="no layer before '0' gives a map"):
        vd.concepts.split(flat).test(spatial=True)
    with pytest.raises(InputError, match="this task has none"):
        vd.concepts.split(vd.Task(nn.Linear(4, 3), torch.rand(5, 4))).train()


def test_sanity_of_a_task_prints_table_three():
    task = vd.tasks.load("digits")[:60]
    table = vd.concepts.sanity(task, draws=2, measures=("ICE-Eval", "SURF"))
    assert repr(table).count("Perfect") == 2
    assert list(table.to_frame().columns[:2]) == ["setting", "measure"]
    assert table.value("Perfect", "SURF", "mae") == 0
    assert table.value("Perfect", "ICE-Eval", "top1") == 1
    other = vd.concepts.sanity(task, seed=1, draws=2, measures=("SURF",))
    assert other.value("Full-Rand", "SURF", "mae") != table.value("Full-Rand", "SURF", "mae")
    with pytest.raises(InputError, match="measures are among"):
        vd.concepts.sanity(task, measures=("SURFF",))
