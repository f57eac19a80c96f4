"""Checks of an explainer's unperturbed maps: a few samples are explained again. Rounding? Random?"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.explainers import Explainer
from veridical.functional import rms_normalise
from veridical.models.context import Context
from veridical.values.task import Task

CHECKED = 4
"""Samples whose maps are made again."""
ROUNDING = 0.1
"""A map that is another one in float64 by more than this share of its size is largely rounding."""
OURS, FOREIGN = "veridical.", ("veridical.explainers.adapters",)
"""Where explainers are defined whose draws are keyed, and those around other people's code."""
REDRAWN = 1e-3
"""Of the largest value: a map that changes by more with the key is random, whatever its method declares."""


@dataclass(frozen=True, eq=False)
class MapChecks:
    """What explaining a few samples again showed of an explainer's unperturbed maps."""

    redraws: bool
    """Whether two keys give two maps."""
    rounding: Tensor
    """Which samples (N,) have maps that are mostly rounding: those checked, or all if most of those do."""
    repeats: bool = True
    """Whether the same key gives the same map."""
    apart: float = float("nan")
    """The largest share of a map by which float64 gives another one; NaN where that was not checked."""


def check_maps(task: Task, explainer: Explainer, key: Key) -> MapChecks:
    """Explain a few samples again, with another key and in float64; the rows are counted to nobody."""
    nowhere = torch.zeros(len(task), dtype=torch.bool, device=task.device)
    if explainer.control or explainer._one_key or task.members is not None:
        return MapChecks(explainer.stochastic, nowhere)
    places = torch.linspace(0, len(task) - 1, min(CHECKED, len(task)), device=task.device).long()
    found: MapChecks = task.uncounted(lambda: _checked(task, explainer, key / "health", places, nowhere))
    return found


def _checked(task: Task, explainer: Explainer, key: Key, places: Tensor, nowhere: Tensor) -> MapChecks:
    few = task[places].changed()  # remembers nothing: what is not counted must not be found there later
    first = _maps(explainer, few, key)
    redraws, repeats = explainer.stochastic, True
    if not redraws:
        redraws = _differ(first, _maps(explainer, few, key / "again"))
        repeats = not (redraws and _differ(first, _maps(explainer, few, key)))
    where = type(explainer).__module__
    if redraws and (where.startswith(FOREIGN) or not where.startswith(OURS)):
        return MapChecks(redraws, nowhere, repeats)  # its own draws need not be the same in float64
    try:
        exact = _maps(explainer, in_double(few), key)
    except Exception:  # the user's code may not do float64
        return MapChecks(redraws, nowhere, repeats)
    valid = explainer._space_of(few).valid
    pair = rms_normalise(torch.stack([first, exact]), where=valid)
    apart = (pair[0] - pair[1]).square().sum(-1).sqrt() / pair[1].square().sum(-1).sqrt().clamp(min=1e-300)
    noise = apart > ROUNDING
    rounding = nowhere.index_put((places,), noise)
    # a property of the method on this model, if most of the samples checked have it
    return MapChecks(redraws, rounding | (noise.double().mean() > 0.5), repeats, float(apart.amax()))


def _differ(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().amax() > REDRAWN * a.abs().amax())


def _maps(explainer: Explainer, task: Task, key: Key) -> Tensor:
    return explainer._values_on(task, Context(key)).double().nan_to_num(0.0, 0.0, 0.0)


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
