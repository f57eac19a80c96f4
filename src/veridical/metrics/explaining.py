"""Maps made again and again within one metric: one batched call each, and one check for all at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.explainers.base import Explainer
from veridical.rng import Key
from veridical.task import Task

Explain = Callable[[Task, Key], Tensor]


@contextmanager
def explaining(explainer: Explainer, task: Task) -> Iterator[Explain]:
    """`with explaining(explainer, task) as explain: explain(world, key)` gives maps (N, V) for each world.

    A map must be finite, or NaN throughout to say that a sample could not be explained. Looking waits for a
    GPU, so what was wrong with any of the maps is raised when the block ends.
    """
    sizes: list[Tensor] = []
    gaps: list[Tensor] = []

    def explain(world: Task, key: Key) -> Tensor:
        # whoever transforms maps does so in its call
        plain = type(explainer).__call__ is Explainer.__call__
        values = explainer.maps(world, key) if plain else explainer(world, key).values
        absent, valid = values.isnan(), explainer.space_of(world).valid
        absent = absent if valid is None else absent | ~valid
        gaps.append(absent.all(-1))
        # NaN and infinity both show in the largest size
        sizes.append(values.abs().amax(-1))
        return values

    yield explain
    if not sizes:
        return
    fine = ((torch.cat(sizes) < torch.inf) | torch.cat(gaps)).unflatten(0, (-1, len(task))).all(0)
    if not bool(fine.all()):
        bad = fine.logical_not().nonzero().reshape(-1)[:5].tolist()
        raise InputError(
            f"the map of '{explainer.name}' is NaN or infinite in samples {bad}; "
            "a map must be finite (or NaN throughout, to say that a sample could not be explained)"
        )


def at_once(explainer: Explainer, task: Task, draws: int) -> int:
    """How many of a metric's draws are explained in one call: as many as one chunk holds.

    One at a time for a method that draws numbers of its own, as every draw has another key.
    """
    if type(explainer).__call__ is not Explainer.__call__ or explainer.draws_on(task):
        return 1
    rows = len(task) * explainer.rows_per_sample(explainer.prepared(task))
    return max(1, min(draws, task.predictor.rows // rows))


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
