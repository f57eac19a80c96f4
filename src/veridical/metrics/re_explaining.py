"""Maps made again and again within one metric: one batched call each, and one check for all at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional._rows import whole_largest
from veridical.metrics.types import Explainer, Key, Task

Explain = Callable[[Task, Key], Tensor]


class Maps:
    """`explain(world, key)` gives maps (N, V), and remembers what has to be known of them."""

    largest: Tensor
    """The largest |e| of each map made last (N,); NaN and infinity both show in it."""
    missing: Tensor
    """Which of the maps made last are NaN throughout (N,): their samples could not be explained."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __call__(self, world: Task, key: Key) -> Tensor:
        explainer = self._explainer
        values = explainer.values_on(world, key)
        absent, valid = values.isnan(), explainer.space_of(world).valid
        absent = absent if valid is None else absent | ~valid
        self.largest, self.missing = whole_largest(values)[:, 0], absent.all(-1)
        self.seen.append((self.largest, self.missing))
        return values


def one_session(task: Task, explainer: Explainer) -> AbstractContextManager[object]:
    """A session around those of many maps, unless an explainer would meet it that opens none itself."""
    return task.predictor.session(grad=None) if explainer.plain else nullcontext()


@contextmanager
def explaining(explainer: Explainer, *tasks: Task) -> Iterator[Maps]:
    """`with explaining(explainer, task) as explain: explain(world, key)` gives maps (N, V) for each world.

    A world holds the samples of the task once or several times over; of several tasks, one behind the other.
    A map must be finite, or NaN throughout to say that a sample could not be explained; what was wrong with
    any of the maps is raised when the block ends.
    """
    maps = Maps(explainer)
    yield maps
    if maps.seen:
        counts = [len(task) for task in tasks]
        _refuse_broken(explainer.name, maps.seen, counts)


def _refuse_broken(name: str, seen: list[tuple[Tensor, Tensor]], counts: list[int]) -> None:
    """Raise where a map is neither finite nor NaN throughout, given largest sizes and which are all NaN."""
    sizes, gaps = (torch.cat(parts) for parts in zip(*seen, strict=True))
    fine = ((sizes < torch.inf) | gaps).unflatten(0, (-1, sum(counts))).all(0)
    if bool(fine.all()):
        return
    for of_task in fine.logical_not().split(counts):
        bad = of_task.nonzero().reshape(-1)[:5].tolist()
        if bad:
            raise InputError(
                f"the map of '{name}' is NaN or infinite in samples {bad}; "
                "a map must be finite (or NaN throughout, to say that a sample could not be explained)"
            )


def at_once(explainer: Explainer, task: Task, draws: int) -> int:
    """How many of a metric's draws are explained in one call: as many as one chunk holds.

    One at a time for a method that draws numbers of its own, as every draw has another key.
    """
    return max(1, min(draws, samples_at_once(explainer, task) // len(task)))


def samples_at_once(explainer: Explainer, task: Task) -> int:
    """How many samples one call explains; 0 where calls must stay apart."""
    if not explainer.plain or explainer.draws_on(task):
        return 0
    return task.predictor.rows // max(1, explainer.rows_per_sample(explainer.prepared(task)))


def stacked(task: Task, times: int, inputs: Tensor | None = None) -> Task:
    """The samples of a task `times` over, one copy of all after the other; at these inputs, if given."""
    if times == 1:
        return task if inputs is None else task.with_inputs(inputs)
    if task.side or task.reference is not task or task.space.take(slice(None)) is not task.space:
        copies = task[torch.arange(len(task), device=task.device).repeat(times)]
        return copies if inputs is None else copies.with_inputs(inputs)
    held = {name: getattr(task, name) for name in ("ids", "draw_ids", "masks", "labels", "targets")}
    held |= {"inputs": task.inputs} if inputs is None else {}
    again: dict[str, Any] = {
        name: None if value is None else value.repeat(times, *[1] * (value.dim() - 1))
        for name, value in held.items()
    }
    again |= {} if inputs is None else {"inputs": inputs.to(task.inputs.dtype)}
    return task.changed(alone=True, calibrated_alike=True, **again)
