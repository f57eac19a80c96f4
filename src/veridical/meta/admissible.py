"""Which metrics are admissible here? Known damage is planted on the maps of one reference method.

A metric may rank explainers on a task only if its scores fall as maps get worse there. Nobody needs to know
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
from veridical.core.allowed import Between
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.meta.consistency import MIN_SAMPLES
from veridical.meta.damage import (
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
from veridical.models.context import Memo
from veridical.models.cost import Cost
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
class Admissibility:
    """What one metric made of planted damage: `each` kind's concordance per sample, or why there is none."""

    metric: str
    category: str
    each: Mapping[str, Tensor]
    scores: Tensor
    """The scores (maps, N), higher is better, in the order of `PlantedDamage.steps`."""
    cost: Cost
    level: float = 0.95
    untested: str = ""
    """Why damage cannot be planted for this metric, or nothing."""

    def mean(self, kind: str | None = None) -> tuple[float, float, float]:
        """Concordance and the ends of its interval, with one kind of damage or with all of them."""
        if self.untested:
            return math.nan, math.nan, math.nan
        parts = [self.each[kind]] if kind else list(self.each.values())
        return interval(torch.stack(parts).nanmean(0), self.level)

    @property
    def reason(self) -> str:
        """Why it is not admissible or was not tested, or nothing."""
        return self.inadmissible or self.untested

    @property
    def admissible(self) -> bool:
        """Whether the metric sees damage on this task."""
        return not self.reason

    @property
    def inadmissible(self) -> str:
        """Why the metric is not admissible here, or nothing."""
        if self.untested:
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
            figures = f"concordance {mean:.2f}, {self.level:.0%} interval {low:.2f} to {high:.2f}"
            if high < 0:
                return f"it prefers maps with {what} ({figures})"
            if not low > 0:
                return f"it cannot tell {what} from chance ({figures})"
        return ""


@dataclass(frozen=True, eq=False, repr=False)
class PlantedDamage:
    """What metrics make of planted damage: `admissible`, `inadmissible`, `untested`, `to_frame`, `plot`."""

    metrics: Mapping[str, Admissibility]
    """The result of each metric, by label."""
    reference: str
    """The method on whose maps damage was planted."""
    steps: tuple[tuple[str, float], ...]
    """The kind and share of damage of every map; the first has none."""
    reference_cost: Cost
    counted: int
    """Samples whose reference map tells features apart, so that it can be damaged."""
    samples: int

    @property
    def admissible(self) -> list[str]:
        """The metrics that see damage."""
        return [label for label, metric in self.metrics.items() if metric.admissible]

    @property
    def inadmissible(self) -> dict[str, str]:
        """The metrics that do not, with the reason."""
        return {label: metric.inadmissible for label, metric in self.metrics.items() if metric.inadmissible}

    @property
    def untested(self) -> dict[str, str]:
        """The metrics for which damage cannot be planted, with the reason."""
        return {label: metric.untested for label, metric in self.metrics.items() if metric.untested}

    @property
    def cost(self) -> Cost:
        """Rows evaluated in all, for the reference maps and by every metric."""
        return sum((metric.cost for metric in self.metrics.values()), self.reference_cost)

    def to_frame(self) -> pd.DataFrame:
        """One row per metric: its concordance with all damage and each kind, intervals, and the reason."""
        import pandas as pd

        rows = []
        for label, metric in self.metrics.items():
            row: dict[str, Any] = {"metric": label, "category": metric.category}
            row["admissible"] = metric.admissible
            row |= dict(zip(("concordance", "low", "high"), metric.mean(), strict=True))
            for kind in dict.fromkeys(kind for kind, _ in self.steps if kind != NONE):
                mean, low, high = metric.mean(kind)
                row |= {kind: mean, f"{kind}_low": low, f"{kind}_high": high}
            rows.append({**row, "rows": metric.cost.forward, "reason": metric.reason})
        return pd.DataFrame(rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Concordance with permuted places and with all damage, one line per metric; grey: inadmissible."""
        from veridical.meta.plots import plot_damage

        return plot_damage(self, ax)

    def __repr__(self) -> str:
        head = (
            f"PlantedDamage on {self.reference}: {len(self.admissible)} of {len(self.metrics)} metrics are "
            f"admissible; {len(self.steps)} maps of {self.samples} samples, {self.cost}"
        )
        shown = ["metric", "admissible", "concordance", "low", "high", PERMUTED, "permuted_low", "reason"]
        left = self.samples - self.counted
        note = [f"left out: {left} samples whose reference map is constant or missing"] * bool(left)
        return "\n".join([head, self.to_frame()[shown].round(3).to_string(index=False), *note])


METHOD = "it scores a method, which makes maps of its own; damage is planted on finished maps"


@checked
def planted_damage(
    task: Task,
    metrics: Sequence[Any] | Mapping[str, Any],
    *,
    reference: Any = None,
    levels: Sequence[float] = LEVELS,
    level: Between = 0.95,
    seed: int = 0,
    progress: bool | None = None,
    memo: Memo | None = None,
) -> PlantedDamage:
    """Tell which metrics are admissible on this task: their scores fall as maps are damaged.

    Maps of a reference method are damaged three ways: the values of a share of the features are permuted, the
    map is blended with noise, it is negated. Each metric scores them all with the same draws. Per sample, its
    concordance is Somers' D of score and damage: pairs of maps it orders rightly less those it orders
    wrongly, over all pairs. A metric is admissible if the mean over samples has an interval above 0, with all
    damage and with permuted places alone.

    Parameters
    ----------
    task
        The model and the samples.
    metrics
        Names, classes or objects, or a mapping of labels to them.
    reference
        The explainer whose maps are damaged, or finished maps; by default exact Shapley values where all
        subsets can be evaluated, else occlusion.
    levels
        The shares of features that are permuted; rising, in (0, 1].
    level
        The level of the intervals.
    seed
        The seed of every draw.
    progress
        Whether to show a progress bar; by default on terminals.
    memo
        What a larger call has computed so far, such as an audit.

    Returns
    -------
    PlantedDamage
        One `Admissibility` per metric, with the reason for each that is not admissible.

    Raises
    ------
    InputError
        If there is no metric, or `levels` or `level` are out of range.
    NotApplicableError
        If no reference is given and none of the default ones applies.

    Examples
    --------
    >>> import veridical as vd
    >>> task = vd.tasks.load("known/linear")[:24]
    >>> found = vd.meta.planted_damage(task, ["pixel_flipping", "sparseness", "fast_gef"])
    >>> found.admissible, found.inadmissible, list(found.untested)
    (['pixel_flipping'], {'sparseness': 'it reads the values of a map, not their places'}, ['fast_gef'])
    """
    metrics = labelled(metrics, as_metric)
    if not metrics:
        raise InputError("give at least one metric to plant damage for")
    memo = memo or Memo()
    maps = as_explanation(reference_for(task) if reference is None else reference, task, seed, memo=memo)
    steps = damaged_maps(maps, levels, Key(seed) / "planted damage")
    chains = {kind: [i for i, step in enumerate(steps) if step.kind in (NONE, kind)] for kind in KINDS}
    distinct = {kind: distinct_maps([steps[i] for i in chain]) for kind, chain in chains.items()}
    there = int((maps.spread & ~maps.missing).sum())
    tested = {}
    for label, metric in track(list(metrics.items()), "planting damage", progress):
        scores, cost, why = torch.empty(0, len(task)), Cost(), metric.inapplicable_reason(task)
        if not (why or isinstance(metric, Metric)):
            why = METHOD
        if there < MIN_SAMPLES:
            apart = f"the maps of {maps.explainer} tell features apart in {there} of {len(task)} samples"
            why = f"{apart}, and it takes {MIN_SAMPLES}"
        if not why:
            scores, cost, why = _scores(metric, task, steps, Key(seed), memo)
        ties = tolerance(task) * scores.abs().nan_to_num(0.0, 0.0, 0.0).amax(0) if not why else 0.0
        each = {k: concordance(scores[chain], distinct[k], ties) for k, chain in chains.items() if not why}
        tested[label] = Admissibility(label, metric.category, each, scores, cost, level, why)
    applied = tuple((step.kind, step.share) for step in steps)
    return PlantedDamage(tested, maps.explainer, applied, maps.cost, there, len(task))


def _scores(
    metric: AnyMetric, task: Task, steps: Sequence[Step], key: Key, memo: Memo
) -> tuple[Tensor, Cost, str]:
    """The scores of every map (K, N), higher is better, their rows, and what went wrong."""
    found, cost = [], Cost()
    assert isinstance(metric, Metric)
    try:
        for step in steps:
            scores = metric(task, step.maps, key, memo)
            found.append(scores.utility.double())
            cost = cost + scores.cost
    except Exception as error:  # a metric that fails must not silence the others
        return torch.empty(0, len(task)), cost, f"it failed: {error}"
    return torch.stack(found), cost, ""
