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
    fine = torch.ones(len(task), dtype=torch.bool, device=task.device)

    def explain(world: Task, key: Key) -> Tensor:
        # whoever transforms maps does so in its call
        plain = type(explainer).__call__ is Explainer.__call__
        values = explainer.maps(world, key) if plain else explainer(world, key).values
        absent, valid = values.isnan(), explainer.space_of(world).valid
        absent = absent if valid is None else absent | ~valid
        sound = values.isfinite().all(-1) | absent.all(-1)
        fine.logical_and_(sound.unflatten(0, (-1, len(task))).all(0))
        return values

    yield explain
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
    return task[torch.arange(len(task), device=task.device).repeat(times)]
