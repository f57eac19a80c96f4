"""Which metrics are admissible here? Known damage is planted on the maps of one reference method.

A metric may judge explainers on a task only if its scores fall as maps get worse there. Nobody needs to know
the true map for that: maps of a sound method, made worse step by step, come in a known order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.api import as_explanation, as_metric, labelled
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.errors import InputError
from veridical.meta.consistency import MIN_SAMPLES
from veridical.meta.damage import (
    BLENDS,
    KINDS,
    LEVELS,
    NONE,
    PERMUTED,
    Step,
    damaged_maps,
    distinct_maps,
    reference_for,
)
from veridical.meta.dependence import PLACELESS
from veridical.metrics.base import AnyMetric, Metric
from veridical.models.cost import Cost
from veridical.perturb.shared_work import sharing
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TIES: Mapping[Any, float] = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Scores of a sample that differ by less than this share of the largest are equal; TF32 and half: 1e-3."""


def tolerance(task: Task) -> float:
    """The share of a score that is rounding, in the precision the model answers in."""
    return TIES.get(task.predictor.rounding or task.outputs.dtype, 1e-3)


def concordance(utility: Tensor, distinct: Tensor, ties: Tensor | float = 0.0) -> Tensor:
    """Somers' D of each sample (N,): how surely scores (K, N) fall along K maps of rising damage.

    Pairs of maps in the right order less those in the wrong order, over all pairs of maps that differ
    (`distinct`, (K, K, N)). Equal and missing scores are neither right nor wrong. NaN where no maps differ or
    no map has a score.
    """
    first, second = torch.triu_indices(len(utility), len(utility), 1, device=utility.device)
    fall = utility[first] - utility[second]
    right = torch.where(fall.abs() <= ties, 0.0, fall.nan_to_num(0.0)).sign()
    counted = distinct[first, second]
    mean = (right * counted).sum(0) / counted.sum(0)
    return mean.masked_fill(utility.isnan().all(0), torch.nan)


def interval(values: Tensor, level: float) -> tuple[float, float, float]:
    """The mean of the samples that have a value, and Student's interval of it, inside [-1, 1]."""
    from scipy.special import stdtrit

    known = values[~values.isnan()].double().cpu()
    mean, count = float(known.mean()), len(known)
    if count < 2:
        return mean, math.nan, math.nan
    reach = float(stdtrit(count - 1, (1 + level) / 2) * known.std() / count**0.5)
    return mean, max(-1.0, mean - reach), min(1.0, mean + reach)


@dataclass(frozen=True, eq=False)
class Voice:
    """What one metric made of planted damage: `each` kind's concordance per sample, or why there is none."""

    metric: str
    category: str
    each: Mapping[str, Tensor]
    scores: Tensor
    """The scores (maps, N), higher is better, in the order of `PlantedDamage.steps`."""
    cost: Cost
    level: float = 0.95
    unjudged: str = ""
    """Why damage cannot be planted for this metric, or nothing."""

    def mean(self, kind: str | None = None) -> tuple[float, float, float]:
        """Concordance and the ends of its interval, with one kind of damage or with all of them."""
        if self.unjudged:
            return math.nan, math.nan, math.nan
        parts = [self.each[kind]] if kind else list(self.each.values())
        return interval(torch.stack(parts).nanmean(0), self.level)

    @property
    def reason(self) -> str:
        """Why the metric is not heard, or nothing."""
        return self.silent or self.unjudged

    @property
    def heard(self) -> bool:
        """Whether the metric sees damage on this task."""
        return not self.reason

    @property
    def silent(self) -> str:
        """Why the metric must not speak here, or nothing."""
        if self.unjudged:
            return ""
        places = self.each[PERMUTED]
        known = int((~places.isnan()).sum())
        if known < MIN_SAMPLES:
            return (
                f"it has scores of damaged maps in {known} of {len(places)} samples, {MIN_SAMPLES} are needed"
            )
        if not any(bool(found.nan_to_num(0.0).any()) for found in self.each.values()):
            return "its scores do not follow the map: no damage changes them"
        if not bool(places.nan_to_num(0.0).any()):
            return f"it {PLACELESS}"
        for kind, what in ((PERMUTED, "permuted places"), (None, "damage")):
            mean, low, high = self.mean(kind)
            told = f"concordance {mean:.2f}, {self.level:.0%} interval {low:.2f} to {high:.2f}"
            if high < 0:
                return f"it prefers maps with {what} ({told})"
            if not low > 0:
                return f"it cannot tell {what} from chance ({told})"
        return ""


@dataclass(frozen=True, eq=False, repr=False)
class PlantedDamage:
    """The voices of metrics by label; `heard`, `silent` and `unjudged`, `to_frame`, `plot`."""

    voices: Mapping[str, Voice]
    reference: str
    """The method on whose maps damage was planted."""
    steps: tuple[tuple[str, float], ...]
    """The kind and share of damage of every map; the first has none."""
    reference_cost: Cost
    counted: int
    """Samples whose reference map tells features apart, so that it can be damaged."""
    samples: int

    @property
    def heard(self) -> list[str]:
        """The metrics that see damage."""
        return [label for label, voice in self.voices.items() if voice.heard]

    @property
    def silent(self) -> dict[str, str]:
        """The metrics that do not, with the reason."""
        return {label: voice.silent for label, voice in self.voices.items() if voice.silent}

    @property
    def unjudged(self) -> dict[str, str]:
        """The metrics for which damage cannot be planted, with the reason."""
        return {label: voice.unjudged for label, voice in self.voices.items() if voice.unjudged}

    @property
    def cost(self) -> Cost:
        """Rows asked in all, for the reference maps and by every metric."""
        return sum((voice.cost for voice in self.voices.values()), self.reference_cost)

    def to_frame(self) -> pd.DataFrame:
        """One row per metric: its concordance with all damage and each kind, intervals, and the reason."""
        import pandas as pd

        rows = []
        for label, voice in self.voices.items():
            row: dict[str, Any] = {"metric": label, "category": voice.category, "heard": voice.heard}
            row |= dict(zip(("concordance", "low", "high"), voice.mean(), strict=True))
            for kind in dict.fromkeys(kind for kind, _ in self.steps if kind != NONE):
                mean, low, high = voice.mean(kind)
                row |= {kind: mean, f"{kind}_low": low, f"{kind}_high": high}
            rows.append({**row, "rows": voice.cost.forward, "reason": voice.reason})
        return pd.DataFrame(rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Concordance with permuted places and with all damage, one line per metric; grey ones are silent."""
        from veridical.meta.plots import plot_voices

        return plot_voices(self, ax)

    def __repr__(self) -> str:
        head = (
            f"PlantedDamage on {self.reference}: {len(self.heard)} of {len(self.voices)} metrics are heard; "
            f"{len(self.steps)} maps of {self.samples} samples, {self.cost}"
        )
        shown = ["metric", "heard", "concordance", "low", "high", PERMUTED, "permuted_low", "reason"]
        left = self.samples - self.counted
        note = [f"left out: {left} samples whose reference map is constant or missing"] * bool(left)
        return "\n".join([head, self.to_frame()[shown].round(3).to_string(index=False), *note])


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
            if there < MIN_SAMPLES:
                apart = f"the maps of {maps.explainer} tell features apart in {there} of {len(task)} samples"
                why = f"{apart}, and it takes {MIN_SAMPLES}"
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
