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
    return vd.Task(Seeing().eval(), torch.rand(3, 4))


def seen_by(task: vd.Task) -> list[tuple[bool, bool, bool]]:
    """Under which circumstances this thread's copy was run, from now on."""
    seen: list[tuple[bool, bool, bool]] = task.predictor.model.seen  # type: ignore[assignment]
    seen.clear()
    return seen


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_a_session_inside_another_has_its_own_gradients(task: vd.Task, outer: bool, inner: bool) -> None:
    seen = seen_by(task)
    with torch.autocast("cpu", dtype=torch.bfloat16), task.session(grad=outer) as model:
        model(task.inputs)
        with task.session(grad=inner) as same:
            assert same is model
            model(task.inputs)
        model(task.inputs)
        assert torch.is_grad_enabled() is outer
    assert seen == [(False, outer, False), (False, inner, False), (False, outer, False)]
    assert task.model.seen == []  # the caller's own was never run


def test_sessions_are_over_when_the_inner_one_raises(task: vd.Task) -> None:
    with pytest.raises(RuntimeError, match="stop"), task.session(), task.session(grad=True):
        raise RuntimeError("stop")
    assert torch.is_grad_enabled()
    assert task.predictor.source.working.sessions == 0


@pytest.mark.parametrize("outer", [None, False, True])
def test_worlds_share_a_session_and_keep_their_own_weights(task: vd.Task, outer: bool | None) -> None:
    noisy = task.with_noise(0.1, vd.core.Key(0))
    expected = [task.outputs, noisy.outputs]
    with torch.autocast("cpu", dtype=torch.bfloat16), task.session(grad=outer) as outside:
        seen = seen_by(task)
        for inner in (False, True):
            for world, outputs in zip((task, noisy), expected, strict=True):
                with world.session(grad=inner) as model:
                    assert torch.is_grad_enabled() is inner
                    assert torch.equal(model(task.inputs), outputs)
                    # the outer one answers with its own weights, whatever was written meanwhile
                    assert torch.equal(outside(task.inputs), expected[0])
                    assert torch.equal(model(task.inputs), outputs)
            assert torch.is_grad_enabled() is (outer is not False)
    assert {drop for drop, _, _ in seen} == {False}


def test_a_session_that_leaves_gradients_alone_does_all_the_rest(task: vd.Task) -> None:
    seen = seen_by(task)
    with torch.no_grad(), task.session(grad=None) as model:
        model(task.inputs)
    with task.session(grad=None) as model:
        model(task.inputs)
    assert seen == [(False, False, False), (False, True, False)]


def test_each_thread_has_sessions_of_its_own(task: vd.Task) -> None:
    copies = []

    def ask() -> None:
        with task.session() as model:
            model(task.inputs)
            copies.append(model.module)

    with task.session(grad=True) as here:
        other = threading.Thread(target=ask)
        other.start()
        other.join()
        assert torch.is_grad_enabled()
        assert copies[0] is not here.module
    assert task.predictor.source.working.sessions == 0


def test_backward_rows_are_counted_without_marks_on_the_input() -> None:
    x = torch.rand(3, 2, requires_grad=True)
    for model in (nn.Linear(2, 2), nn.Identity()):
        task = vd.Task(model, x.detach())
        before = task.predictor.meter.cost.backward
        with task.session(grad=True) as run:
            torch.autograd.grad(run(x).sum(), x)
        assert task.predictor.meter.cost.backward - before == 3
    torch.autograd.grad(x.sum(), x)
    assert task.predictor.meter.cost.backward - before == 3
