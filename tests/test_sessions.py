"""Sessions inside sessions: the model stays as the plan wants it, and all is put back after the last one."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import veridical as vd


class Seeing(nn.Module):
    """Remembers under which circumstances it was run."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 2), nn.Dropout(0.5)
        self.seen: list[tuple[bool, bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((self.drop.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        out: Tensor = self.drop(self.linear(x))
        return out


@pytest.fixture
def task() -> vd.Task:
    model = Seeing().eval()
    task = vd.Task(model, torch.rand(3, 4))
    model.drop.train()
    model.seen.clear()
    return task


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_a_session_inside_another_has_its_own_gradients(task: vd.Task, outer: bool, inner: bool) -> None:
    seen = task.model.seen
    with torch.autocast("cpu", dtype=torch.bfloat16), task.session(grad=outer) as model:
        model(task.inputs)
        with task.session(grad=inner) as same:
            assert same is model
            model(task.inputs)
        model(task.inputs)
        assert torch.is_grad_enabled() is outer
    assert seen == [(False, outer, False), (False, inner, False), (False, outer, False)]
    assert task.model.drop.training


def test_flags_come_back_when_the_inner_one_raises(task: vd.Task) -> None:
    with pytest.raises(RuntimeError, match="stop"), task.session(), task.session(grad=True):
        raise RuntimeError("stop")
    assert task.model.drop.training
    assert not task.predictor._open


def test_each_thread_has_sessions_of_its_own(task: vd.Task) -> None:
    def ask() -> None:
        with task.session() as model:
            model(task.inputs)

    with task.session(grad=True):
        other = threading.Thread(target=ask)
        other.start()
        other.join()
        assert torch.is_grad_enabled()
    assert task.model.seen == [(False, False, False)]
    assert task.model.drop.training


def test_backward_rows_are_counted_without_marks_on_the_input() -> None:
    x = torch.rand(3, 2, requires_grad=True)
    for model in (nn.Linear(2, 2), nn.Identity()):
        task = vd.Task(model, x.detach())
        before = task.predictor.meter.backward
        with task.session(grad=True) as run:
            torch.autograd.grad(run(x).sum(), x)
        assert task.predictor.meter.backward - before == 3
    torch.autograd.grad(x.sum(), x)
    assert task.predictor.meter.backward - before == 3
