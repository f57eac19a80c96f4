"""The perturbation path: how much noise it takes until the model answers by chance."""

from __future__ import annotations

import math
from typing import Any, Literal

from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.gef.agreement import agreements, chance_of
from veridical.gef.isotonic_search import FIRST, GRID, STEP, isotonic
from veridical.gef.noise_path import NoisePath, even_levels
from veridical.gef.worlds import Perturbation, Worlds
from veridical.values.task import Task

MAX_SAMPLES = 256
"""Samples on which a path is searched."""
Rule = Literal["isotonic", "published"]


@checked
def find_path(
    task: Task,
    levels: Count = 5,
    rule: Rule = "isotonic",
    perturb: Perturbation = "weights",
    draws: Count = 20,
    key: Key = Key(0),  # noqa: B008 (frozen)
) -> NoisePath:
    """Search the noise at which the model's predictions agree with its own only by chance.

    `isotonic` (ours): on the grid 0.2, 0.3, ... 10.2 the first level at which a falling fit of the mean
    agreement is within max(0.1/C, 0.01) of its floor: chance, 1/C, or else ("plateau") what is left under
    the strongest noise. The crossing is found by bisection with `draws` draws per level, fewer where the
    agreement is plainly higher. Where answers are not finite the path ends before, and says so.
    `published`: one draw per level, stop at |agreement - 1/C| <= max(0.1/C, 0.01) or after 100 steps, mean of
    5 runs.
    """
    if rule == "isotonic" and draws < 2:
        raise InputError(f"the isotonic rule needs several draws per level, got {draws}")
    # a task of classes has no inputs of its own; its rows are what the model is seen to change on
    task = task if task.members is None else task.members
    few = task if len(task) <= MAX_SAMPLES else task[_some(task, key)]
    before = task.predictor.meter.cost
    search = isotonic if rule == "isotonic" else _published
    found = search(few, Worlds(few, perturb), draws, key / "path")
    rows = (task.predictor.meter.cost - before).forward
    own = even_levels(found["sigma_max"], levels)
    return NoisePath(levels=own, rule=rule, chance=chance_of(task)[0], rows=rows, **found)


def _some(task: Task, key: Key) -> Tensor:
    """A keyed choice of samples: sets are often sorted by class, so the first ones would not do."""
    return keyed.bits(key / "some", task.draw_ids, 0, 1)[:, 0].argsort()[:MAX_SAMPLES].sort().values


def _published(task: Task, worlds: Worlds, draws: int, key: Key) -> dict[str, Any]:
    """The rule of the published program."""
    chance, slack = chance_of(task)
    ends, stopped = [], 0
    for run in range(5):
        for sigma in GRID[:100]:
            level = float(agreements(task, worlds, sigma, range(1), key / run / str(sigma))[0])
            if math.isnan(level):
                # answers that are not finite end the path at the level before
                sigma = max(sigma - STEP, FIRST)
                break
            near = level <= 0 if task.head == "regression" else abs(level - chance) <= slack
            if near:
                stopped += 1
                break
        ends.append(sigma)
    reason = f"{stopped} of 5 runs met chance" if stopped else "no run met chance in 100 steps"
    return {"sigma_max": sum(ends) / len(ends), "reason": reason, "searched": tuple(ends)}
