"""Which samples are looked at: a keyed choice, since sets are often sorted by class."""

from __future__ import annotations

from torch import Tensor

from veridical.random import keyed
from veridical.random.keyed import Key
from veridical.values.task import Task


def chosen(task: Task, count: int, seed: int) -> Tensor:
    """The places of `count` samples, in the task's order: the same for the same ids and seed.

    Fewer are always among more, so that what is looked at twice is the same sample.
    """
    order = keyed.bits(Key(seed) / "audit" / "samples", task.ids, 0, 1)[:, 0].argsort()
    return order[:count].sort().values


def some_of(task: Task, count: int, seed: int) -> Task:
    """The task with at most `count` of its samples."""
    return task if len(task) <= count else task[chosen(task, count, seed)]
