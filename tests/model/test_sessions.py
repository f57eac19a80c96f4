"""Sessions inside sessions: the model stays as the plan wants it, and all is put back after the last one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import Recurrent
from veridical.model.noisy_copy import WeightView, noisy


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


@pytest.mark.parametrize("outer", [None, False, True])
def test_what_is_made_from_a_predictor_shares_its_session(task: vd.Task, outer: bool | None) -> None:
    other = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
    view = WeightView(task.predictor.model, noisy(task.predictor.model, 0.1, vd.Key(0)))
    seen, whole = task.model.seen, task.predictor
    with torch.autocast("cpu", dtype=torch.bfloat16), task.session(grad=outer):
        for inner in (False, True):
            for made in (whole.with_model(view), whole.with_model(other)):
                with made.session(grad=inner) as model:
                    assert not any(module.training for module in made.model.modules())
                    assert torch.is_grad_enabled() is inner
                    model(task.inputs)
            assert torch.is_grad_enabled() is (outer is not False)
    assert seen == [(False, inner, False) for inner in (False, True)]
    assert task.model.drop.training
    assert other[1].training
    assert not whole._open


def test_a_session_that_leaves_gradients_alone_does_all_the_rest(task: vd.Task) -> None:
    with torch.no_grad(), task.session(grad=None) as model:
        model(task.inputs)
    with task.session(grad=None) as model:
        model(task.inputs)
    assert task.model.seen == [(False, False, False), (False, True, False)]
    assert task.model.drop.training


def test_a_flag_set_inside_is_seen_by_what_is_made_and_put_back(task: vd.Task) -> None:
    view = WeightView(task.predictor.model, noisy(task.predictor.model, 0.1, vd.Key(0)))
    with task.session() as model:
        task.model.drop.train()
        with task.predictor.with_model(view).session() as noisy_model:
            noisy_model(task.inputs)
        assert task.model.drop.training
        # its own sessions leave it as it was found, as a method that wants dropout on may wish
        with task.session():
            model(task.inputs)
    assert [drop for drop, _, _ in task.model.seen] == [False, True]
    assert task.model.drop.training


def test_cudnn_is_off_only_inside_what_asks_for_gradients() -> None:
    task = vd.Task(Recurrent(), torch.randn(3, 5, 4))

    def stopped() -> None:
        with task.session(grad=True):
            assert not torch.backends.cudnn.enabled
            raise RuntimeError("stop")

    with task.session(grad=None):
        assert torch.backends.cudnn.enabled
        with pytest.raises(RuntimeError, match="stop"):
            stopped()
        assert torch.backends.cudnn.enabled


ALLOCATING = """
import resource, torch, veridical as vd
torch.set_num_threads(1)
vd.Task(torch.nn.Linear(4, 2), torch.rand(3, 4))
torch.ones(2**20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(16):
    torch.ones(2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about the memory of glibc")
def test_memory_that_tensors_give_back_is_kept() -> None:
    """16 tensors of 4 MiB, one after the other, are 16,384 pages if each is fetched anew."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ALLOCATING]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert int(run.stdout) < 5000


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
