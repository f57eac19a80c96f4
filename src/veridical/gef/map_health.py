"""Is a map what it seems? A few samples are explained again: is it rounding, is it random?"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.explainers import Explainer
from veridical.functional import rms_normalise
from veridical.values.task import Task

LOOKED_AT = 4
"""Samples whose maps are made again."""
ROUNDING = 0.1
"""A map that is another one in float64 by more than this share of its size is largely rounding."""
OURS, FOREIGN = "veridical.", ("veridical.explainers.adapters",)
"""Where explainers are defined whose draws are keyed, and those around other people's code."""
REDRAWN = 1e-3
"""Of the largest value: a map that changes by more with the key is random, whatever its method declares."""


@dataclass(frozen=True, eq=False)
class MapHealth:
    """What a second look at an explainer's unperturbed maps found."""

    draws: bool
    """Whether two keys give two maps."""
    rounding: Tensor
    """Which samples (N,) have maps that are mostly rounding: those looked at, or all if most of those do."""
    repeats: bool = True
    """Whether the same key gives the same map."""
    apart: float = float("nan")
    """The largest share of a map by which float64 gives another one; NaN where that was not looked at."""
    why_not: str = ""
    """Why float64 was not looked at."""


def map_health(task: Task, explainer: Explainer, key: Key) -> MapHealth:
    """Explain a few samples again, with another key and in float64; the rows are counted to nobody."""
    nowhere = torch.zeros(len(task), dtype=torch.bool, device=task.device)
    if explainer.control or explainer.one_key or task.members is not None:
        return MapHealth(explainer.stochastic, nowhere, why_not="it is a control, or optimises a picture")
    places = torch.linspace(0, len(task) - 1, min(LOOKED_AT, len(task)), device=task.device).long()
    health: MapHealth = task.uncounted(lambda: _looked(task, explainer, key / "health", places, nowhere))
    return health


def _looked(task: Task, explainer: Explainer, key: Key, places: Tensor, nowhere: Tensor) -> MapHealth:
    few = task[places].changed()  # remembers nothing: what is not counted must not be found there later
    first = _maps(explainer, few, key)
    draws, repeats = explainer.stochastic, True
    if not draws:
        draws = _differ(first, _maps(explainer, few, key / "again"))
        repeats = not (draws and _differ(first, _maps(explainer, few, key)))
    where = type(explainer).__module__
    if draws and (where.startswith(FOREIGN) or not where.startswith(OURS)):
        return MapHealth(draws, nowhere, repeats, why_not="its own draws need not be the same in float64")
    try:
        exact = _maps(explainer, in_double(few), key)
    except Exception as error:
        return MapHealth(draws, nowhere, repeats, why_not=f"{type(error).__name__}: {error}"[:200])
    valid = explainer.space_of(few).valid
    pair = rms_normalise(torch.stack([first, exact]), where=valid)
    apart = (pair[0] - pair[1]).square().sum(-1).sqrt() / pair[1].square().sum(-1).sqrt().clamp(min=1e-300)
    noise = apart > ROUNDING
    rounding = nowhere.index_put((places,), noise)
    # a property of the method on this model, if most of the samples looked at have it
    return MapHealth(draws, rounding | (noise.double().mean() > 0.5), repeats, float(apart.amax()))


def _differ(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().amax() > REDRAWN * a.abs().amax())


def _maps(explainer: Explainer, task: Task, key: Key) -> Tensor:
    return explainer.values_on(task, key).double().nan_to_num(0.0, 0.0, 0.0)


def in_double(task: Task) -> Task:
    """The same task in float64: a copy of its model, its inputs and side inputs."""

    def double(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    source = task.predictor.source
    own = source.copied() if not task.predictor.wraps and not source.shared else None
    module = (own or copy.deepcopy(task.predictor.model)).double()
    side = task.side
    return task.changed(
        alone=True,
        predictor=task.predictor.with_model(module),
        inputs=double(task.inputs),
        side={n: double(v) for n, v in side.items()} if isinstance(side, dict) else tuple(map(double, side)),
        train=double(task.train),
    )
