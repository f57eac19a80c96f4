"""How much does a method show? Its gain over noise as a share of what a reference order gains."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.auditing.measured_effects import Effects
from veridical.core.key import Key
from veridical.metrics.base import Metric
from veridical.models.context import Context, Memo
from veridical.perturb.subset_table import FEW
from veridical.qge.subsets import best_and_worst, steps_of
from veridical.values.task import Task

LEVEL = 0.95
"""Of the interval."""
RESAMPLES = 2000
BEST_ORDER = "the best order of all"
"""The reference of up to 12 features: dynamic programming over all subsets finds it."""
MEASURED = "the order of the measured effects"
"""The reference of more features."""


class Grade(NamedTuple):
    """What a method shows of what the reference shows: 1 is all of it, 0 is as much as noise."""

    value: float
    """NaN where the reference is not shown to be better than noise."""
    low: float
    """The lower end of its 95% interval."""
    high: float
    """The upper end."""
    reference: str
    """Which order stands for 1."""

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "-"
        return f"{self.value:.0%} [{self.low:.0%}, {self.high:.0%}]"


def grade(method: Tensor, noise: Tensor, reference: Tensor, seed: int = 0, name: str = MEASURED) -> Grade:
    """Grade a method: g = mean(method - noise) / mean(reference - noise) over samples, never clipped.

    The interval is the percentile bootstrap of the ratio over samples, drawn together for numerator and
    denominator (Efron 1979). The grade is NaN where the denominator's own interval contains 0 or lies below.

    Parameters
    ----------
    method, noise, reference : Tensor
        Scores (N,) of the same samples, higher is better; of noise the mean of its draws. A sample in which
        the method has no score (NaN) shows as much as noise; one without the others is left out.
    seed : int
        Seed of the draws.
    name : str
        What the reference is called.

    Returns
    -------
    Grade
        The ratio with its interval.

    Examples
    --------
    >>> noise, best = torch.zeros(40), torch.linspace(0.5, 1.5, 40)
    >>> str(grade(0.8 * best, noise, best))
    '80% [80%, 80%]'
    """
    above, most = method.double() - noise.double(), reference.double() - noise.double()
    known = most.isfinite()
    above, most = above[known].nan_to_num(0.0), most[known]
    nothing = Grade(math.nan, math.nan, math.nan, name)
    if not len(most):
        return nothing
    dice = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(most), (RESAMPLES, len(most)), generator=dice).to(most.device)
    tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64, device=most.device)
    below = most[rows].mean(-1)
    if float(below.quantile(tails[0])) <= 0:
        return nothing
    low, high = (above[rows].mean(-1) / below).quantile(tails).tolist()
    return Grade(float(above.mean() / most.mean()), low, high, name)


def reference_scores(
    task: Task, effects: Effects, metric: Metric, seed: int, memo: Memo | None = None
) -> tuple[Tensor, str]:
    """The scores (N,) that stand for grade 1, higher is better, and what they are of.

    Of up to 12 features those of the best of all D! orders, where `metric` (QGE of pixel flipping) adds up
    responses along an order; else those of the order of the measured effects.
    """
    counts, key = task.space.counts(len(task)), Key(seed)
    if int(counts.max()) <= FEW:
        context = Context.begun(task.predictor, key / metric.name, memo)
        best = _best_order(task, counts, metric, context)
        if best is not None:
            return best, BEST_ORDER
    return metric(task, effects.as_explanation(task), key, memo).utility, MEASURED


def _best_order(task: Task, counts: Tensor, metric: Metric, context: Context) -> Tensor | None:
    """The best score (N,) of any order of each sample; None where the metric is no sum along an order."""
    best = torch.full((len(task),), torch.nan, dtype=torch.float64, device=task.device)
    for features in counts.unique().tolist():
        rows = (counts == features).nonzero()[:, 0].to(task.device)
        some = task if len(rows) == len(task) else task[rows]
        steps = steps_of(metric, some, features, context)
        if steps is None:
            return None
        best[rows] = best_and_worst(steps)[0]
    return best
