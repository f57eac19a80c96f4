"""What an explainer made on its way is gone when it is done, without waiting for Python's collector."""

from __future__ import annotations

import gc

import pytest
import torch

import veridical as vd
from veridical.explainers import applicable


@pytest.fixture(scope="module")
def task() -> vd.Task:
    return vd.tasks.load("digits")[:8]


NAMES = applicable(vd.tasks.load("digits"))


def alive() -> int:
    """Bytes of all tensors that Python knows of."""
    tensors = [held for held in gc.get_objects() if issubclass(type(held), torch.Tensor)]
    return sum(held.numel() * held.element_size() for held in tensors)


def left_behind(work) -> int:
    """Bytes that are still held after work was done three times without a collection."""
    # twice: a second run is written down as a plan, whose names for the weights stay
    work()
    work()
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for _ in range(3):
            work()
        return alive() - before
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_behind(name: str, task: vd.Task) -> None:
    assert left_behind(lambda: vd.explain(name, task)) < 20_000


def test_a_cycle_would_be_found() -> None:
    def work() -> None:
        held: list[object] = [torch.zeros(5_000)]
        held.append(held)

    assert left_behind(work) >= 20_000
