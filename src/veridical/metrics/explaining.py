"""Maps made again and again within one metric: one batched call each, and one check for all at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from veridical.deferred import look_later
from veridical.errors import InputError
from veridical.explainers.base import Explainer
from veridical.functional._rows import whole_largest
from veridical.predictor import Side
from veridical.rng import Key
from veridical.task import Task

Explain = Callable[[Task, Key], Tensor]


@contextmanager
def explaining(explainer: Explainer, *tasks: Task) -> Iterator[Explain]:
    """`with explaining(explainer, task) as explain: explain(world, key)` gives maps (N, V) for each world.

    A world holds the samples of the task once or several times over; of several tasks, one behind the other.
    A map must be finite, or NaN throughout to say that a sample could not be explained. Looking waits for a
    GPU, so what was wrong with any of the maps is raised when the block ends or, there, when the score that
    is being made is read.
    """
    # whoever transforms maps does so in its call, which looks at them itself
    if type(explainer).__call__ is not Explainer.__call__:
        yield lambda world, key: explainer(world, key).values
        return
    seen: list[tuple[Tensor, Tensor]] = []

    def explain(world: Task, key: Key) -> Tensor:
        values = explainer.maps(world, key)
        absent, valid = values.isnan(), explainer.space_of(world).valid
        absent = absent if valid is None else absent | ~valid
        # NaN and infinity both show in the largest size
        seen.append((whole_largest(values)[:, 0], absent.all(-1)))
        return values

    yield explain
    if seen:
        counts = [len(task) for task in tasks]
        look_later(tasks[0].device, lambda: _refuse_broken(explainer.name, seen, counts))


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
    return max(1, min(draws, _samples_at_once(explainer, task) // len(task)))


def _samples_at_once(explainer: Explainer, task: Task) -> int:
    """How many samples one call explains; 0 where calls must stay apart."""
    if type(explainer).__call__ is not Explainer.__call__ or explainer.draws_on(task):
        return 0
    return task.predictor.rows // explainer.rows_per_sample(explainer.prepared(task))


def explained(explainer: Explainer, tasks: Sequence[Task], keys: Sequence[Key]) -> Tensor:
    """The maps of tasks that have model and features in common, one task's behind the other's.

    They are made by one call where one chunk holds them all.
    """
    counts = [len(task) for task in tasks]
    if _samples_at_once(explainer, tasks[0]) < sum(counts):
        maps = []
        for task, key in zip(tasks, keys, strict=True):
            with explaining(explainer, task) as explain:
                maps.append(explain(task, key))
        return torch.cat(maps)
    with explaining(explainer, *tasks) as explain:
        return explain(_joined(tasks), keys[0])


def _joined(tasks: Sequence[Task]) -> Task:
    """The samples of tasks that have model and features in common, one task's behind the other's."""
    side: Side = (
        {name: torch.cat([task.side[name] for task in tasks]) for name in tasks[0].side}  # type: ignore[call-overload]
        if isinstance(tasks[0].side, dict)
        else tuple(torch.cat(parts) for parts in zip(*(task.side for task in tasks), strict=True))
    )
    joined = tasks[0]._derive(
        inputs=torch.cat([task.inputs for task in tasks]),
        ids=torch.cat([task.ids for task in tasks]),
        _targets=torch.cat([task.targets for task in tasks]),
        side=side,
        masks=None,
        labels=None,
    )
    joined.__dict__["reference"] = joined
    return joined


def stacked(task: Task, times: int) -> Task:
    """The samples of a task `times` over, one copy of all after the other."""
    if times == 1:
        return task
    if task.side or task.reference is not task or task.space.take(slice(None)) is not task.space:
        return task[torch.arange(len(task), device=task.device).repeat(times)]
    held = {name: getattr(task, name) for name in ("inputs", "ids", "masks", "labels", "targets")}
    again = {
        name: None if value is None else value.repeat(times, *[1] * (value.dim() - 1))
        for name, value in held.items()
    }
    calibrations = dict(task.__dict__["_calibrations"])
    copies = task._derive(_targets=again.pop("targets"), _calibrations=calibrations, **again)
    copies.__dict__["reference"] = copies
    return copies
