"""Which samples are looked at: a keyed choice, since sets are often sorted by class."""

from __future__ import annotations

from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.values.task import Task


def keyed_order(task: Task, seed: int) -> Tensor:
    """The places of all samples in an order that ids and seed decide; fewer are always among more."""
    return keyed.bits(Key(seed) / "audit" / "samples", task.draw_ids, 0, 1)[:, 0].argsort()


def some_of(task: Task, count: int, seed: int) -> Task:
    """The task with at most `count` of its samples, in its own order."""
    return task if len(task) <= count else task[keyed_order(task, seed)[:count].sort().values]


def in_drawn_order(task: Task, count: int, seed: int) -> Task:
    """The same samples in keyed order: tests that look early need an order fixed before scores are seen."""
    return task[keyed_order(task, seed)[:count]]
