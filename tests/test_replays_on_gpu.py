"""CUDA graphs of passes: bits and counts of passes made as usual, and a way out where there can be none."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from benchmarks.networks import lenet
from veridical import replays
from veridical.cuda_graphs import CudaGraphs
from veridical.explainers import registry
from veridical.replays import AFTER, Recording

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def digits(model: nn.Module | None = None, count: int = 96, **settings: Any) -> vd.Task:
    rows = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    made = (model or lenet()).cuda()
    return vd.Task(made, rows.cuda(), train=rows.flip(0).cuda(), **settings)


@pytest.fixture(autouse=True)
def same_bits_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's gradients are else not the same twice."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def recordings(task: vd.Task) -> list[Any]:
    return [each for each in task.predictor.replays._known.values() if isinstance(each, Recording)]


RECORDABLE = [n for n in registry if type(registry.make(n)).__dict__.get("recordable", False)]


@pytest.mark.parametrize("name", RECORDABLE)
def test_maps_are_those_of_the_pass(name: str) -> None:
    task = digits()
    plain = task.with_plan(vd.Plan(replay=False))
    for turn in range(AFTER + 4):
        moved = task.inputs * (1 - 0.1 * turn)
        ours, theirs = (vd.explain(name, each.with_inputs(moved)) for each in (task, plain))
        assert torch.equal(ours.values, theirs.values), turn
        assert ours.cost == theirs.cost
    assert recordings(task)
    assert not recordings(plain)


@pytest.mark.parametrize(
    "name", ["completeness", "pixel_flipping", "road", "gef", "mprt", "efficient_mprt", "consistency"]
)
def test_scores_are_those_of_the_pass(name: str) -> None:
    task = digits()
    plain = task.with_plan(vd.Plan(replay=False))
    theirs = vd.score(name, plain, "saliency")
    for _ in range(AFTER + 4):
        ours = vd.score(name, task, "saliency")
        assert torch.equal(ours.values, theirs.values)
        assert ours.cost == theirs.cost
    assert recordings(task)


class Around(nn.Module):
    """A small model that does something else on the way."""

    def __init__(self, way: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = lenet()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.inner(self.way(x))
        return answer


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "looks": lambda x: x / max(1.0, float(x.amax())),
    "fetches": lambda x: x * torch.tensor([2.0], device=x.device),
    "returns": lambda x: x.cpu().cuda(),
    "counts": lambda x: x * len((x > 0.5).nonzero()) / x.numel(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_waits_is_run_as_usual(way: str) -> None:
    task = digits(Around(WAYS[way]).eval())
    first = vd.explain("gradient", task).values
    for _ in range(AFTER + 2):
        assert torch.equal(vd.explain("gradient", task).values, first)
    assert not recordings(task)
    # nothing is left of the attempt: random numbers, and recordings of others
    assert torch.rand(3, device="cuda").isfinite().all()
    other = digits()
    for _ in range(AFTER + 2):
        vd.explain("gradient", other)
    assert recordings(other)


def test_a_failure_that_nobody_foresaw_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "RECORDERS", dict(replays.RECORDERS))
    monkeypatch.setattr(CudaGraphs, "weighed", lambda _self, run: (run(), 0))
    for way in WAYS:
        monkeypatch.setitem(replays.RECORDERS, "cuda", CudaGraphs)
        task = digits(Around(WAYS[way]).eval())
        maps = [vd.explain("gradient", task).values for _ in range(AFTER + 2)]
        assert all(torch.equal(each, maps[0]) for each in maps)
        assert "cuda" not in replays.RECORDERS
        assert torch.rand(3, device="cuda").isfinite().all()
        torch.cuda.empty_cache()
    monkeypatch.setitem(replays.RECORDERS, "cuda", CudaGraphs)
    other = digits()
    for _ in range(AFTER + 2):
        vd.explain("gradient", other)
    assert recordings(other)


def test_random_numbers_of_a_model_stay_random() -> None:
    task = digits(Around(lambda x: x + torch.rand_like(x)).eval())
    maps = [vd.explain("saliency", task).values for _ in range(AFTER + 4)]
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(maps))


def test_gradients_that_are_not_the_same_twice_are_played_again() -> None:
    torch.backends.cudnn.deterministic = False
    task = digits()
    maps = [vd.explain("gradient", task).values for _ in range(AFTER + 3)]
    assert recordings(task)
    size = maps[0].abs().amax()
    assert all(float((each - maps[0]).abs().amax() / size) < 1e-5 for each in maps)


def test_threads_have_recordings_of_their_own() -> None:
    task = digits()
    plain = vd.explain("gradient", task.with_plan(vd.Plan(replay=False))).values
    wrong: list[int] = []

    def work(turn: int) -> None:
        for _ in range(20):
            if not torch.equal(vd.explain("gradient", task).values, plain):
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.cuda.get_sync_debug_mode() == 0


def test_weights_may_move_in_their_place() -> None:
    task = digits(targets=0)
    for _ in range(AFTER + 2):
        before = vd.explain("gradient", task).values
    with torch.no_grad():
        for parameter in task.model[-1].parameters():  # type: ignore[index]
            parameter.mul_(2)
    assert recordings(task)
    assert torch.equal(vd.explain("gradient", task).values, 2 * before)


def test_memory_of_recordings_is_used_again() -> None:
    reserved, allocated = [], []
    for _ in range(6):
        task = digits()
        for _ in range(AFTER + 2):
            vd.explain("gradient", task)
        assert recordings(task)
        del task
        gc.collect()
        reserved.append(torch.cuda.memory_reserved())
        allocated.append(torch.cuda.memory_allocated())
    assert reserved[-1] == reserved[2]
    assert allocated[-1] == allocated[2]
