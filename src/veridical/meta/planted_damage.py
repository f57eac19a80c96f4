"""Which metrics can see damage here? Known damage is planted on the maps of one reference method.

A metric may judge explainers on a task only if its scores fall as maps get worse there. Nobody needs to know
the true map for that: maps of a sound method, made worse step by step, come in a known order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from veridical.api import as_explanation, as_metric, labelled
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.errors import InputError
from veridical.meta.consistency import FEWEST
from veridical.meta.damage import (
    BLENDS,
    KINDS,
    LEVELS,
    NONE,
    Step,
    damaged_maps,
    distinct_maps,
    reference_for,
)
from veridical.meta.voices import PlantedDamage, Voice, concordance, tolerance
from veridical.metrics.base import AnyMetric, Metric
from veridical.models.cost import Cost
from veridical.perturb.shared_work import sharing
from veridical.values.task import Task

METHOD = "it judges a method, which it asks for maps of its own; damage is planted on finished maps"


def planted_damage(
    task: Task,
    metrics: Sequence[Any] | Mapping[str, Any],
    *,
    reference: Any = None,
    levels: Sequence[float] = LEVELS,
    blends: Sequence[float] = BLENDS,
    level: float = 0.95,
    seed: int = 0,
    progress: bool | None = None,
) -> PlantedDamage:
    """Tell which metrics see known damage on this task, and which are silent, with the reason.

    The maps of `reference` (an explainer or finished maps; exact Shapley values where all subsets can be
    asked, else occlusion) are damaged three ways: the values of a share of the features are permuted
    (`levels`), the map is blended with noise (`blends`), it is negated. Each metric scores them all with the
    same draws. Per sample, its concordance is Somers' D of score and damage: pairs of maps it orders rightly
    less those it orders wrongly, over all pairs. A metric has a voice if the mean over samples has an
    interval (at `level`) above 0, with all damage and with permuted places alone.

    >>> import veridical as vd
    >>> task = vd.tasks.load("known/linear")[:24]
    >>> found = vd.meta.planted_damage(task, ["pixel_flipping", "sparseness", "gef"])
    >>> found.heard, found.silent, list(found.unjudged)
    (['pixel_flipping'], {'sparseness': 'it reads the values of a map, not their places'}, ['gef'])
    """
    judges = labelled(metrics, as_metric)
    if not judges:
        raise InputError("give at least one metric to plant damage for")
    if not 0 < level < 1:
        raise InputError(f"level lies between 0 and 1, got {level}")
    with sharing(task):
        maps = as_explanation(reference_for(task) if reference is None else reference, task, seed)
        steps = damaged_maps(maps, levels, blends, Key(seed) / "planted damage")
        chains = {kind: [i for i, step in enumerate(steps) if step.kind in (NONE, kind)] for kind in KINDS}
        chains = {kind: chain for kind, chain in chains.items() if len(chain) > 1}
        distinct = {kind: distinct_maps([steps[i] for i in chain]) for kind, chain in chains.items()}
        there = int((maps.spread & ~maps.missing).sum())
        voices = {}
        for label, judge in track(list(judges.items()), "planting damage", progress):
            scores, cost, why = torch.empty(0, len(task)), Cost(), _why_not(judge, task)
            if there < FEWEST:
                apart = f"the maps of {maps.explainer} tell features apart in {there} of {len(task)} samples"
                why = f"{apart}, and it takes {FEWEST}"
            if not why:
                scores, cost, why = _scores(judge, task, steps, Key(seed))
            ties = tolerance(task) * scores.abs().nan_to_num(0.0, 0.0, 0.0).amax(0) if not why else 0.0
            each = {
                k: concordance(scores[chain], distinct[k], ties) for k, chain in chains.items() if not why
            }
            voices[label] = Voice(label, judge.category, each, scores, cost, level, why)
    told = tuple((step.kind, step.share) for step in steps)
    return PlantedDamage(voices, maps.explainer, told, maps.cost, there, len(task))


def _scores(judge: AnyMetric, task: Task, steps: Sequence[Step], key: Key) -> tuple[Tensor, Cost, str]:
    """The scores of every map (K, N), higher is better, their rows, and what went wrong."""
    found, cost = [], Cost()
    assert isinstance(judge, Metric)
    try:
        for step in steps:
            scores = judge(task, step.maps, key)
            found.append(scores.utility.double())
            cost = cost + scores.cost
    except Exception as error:  # a metric that fails must not silence the others
        return torch.empty(0, len(task)), cost, f"it failed: {error}"
    return torch.stack(found), cost, ""


def _why_not(judge: AnyMetric, task: Task) -> str:
    return judge.why_not(task) or ("" if isinstance(judge, Metric) else METHOD)
