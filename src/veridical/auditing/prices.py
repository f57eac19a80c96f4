"""What maps and scores ask of the model, counted on one sample beforehand.

The budget is kept by these prices and not by what was asked: whether two jobs share answers depends on where
they are carried out, and an audit decides the same in one process and in many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from veridical.core.key import Key
from veridical.explainers import Explainer
from veridical.explainers.controls import Random
from veridical.metrics import Metric
from veridical.models.cost import Cost
from veridical.perturb.shared_work import sharing
from veridical.perturb.subset_table import has_few
from veridical.perturb.token_rows import remembering
from veridical.values.task import Task


class Price(NamedTuple):
    """Rows per sample: of the scores of a first map, and of those of each further one, which share some."""

    first: int
    more: int
    most: float = math.inf
    """All that there is to ask about a sample: its subsets, where it has few features."""

    def of(self, maps: int, maps_rows: int) -> float:
        """Rows per sample of so many maps, which ask `maps_rows` themselves, and their scores."""
        return min(self.first + (maps - 1) * self.more + maps_rows, self.most)


def rows(cost: Cost) -> int:
    """Rows forward and backward."""
    return cost.forward + cost.backward


def ordinary(task: Task) -> Task:
    """A sample that has rather many features: three in four have no more."""
    order = task.space.counts(len(task)).argsort(stable=True)
    return task[order[(3 * len(order)) // 4].reshape(1).to(task.device)]


def price_of_map(explainer: Explainer, one: Task, seed: int) -> Cost:
    """What one map asks; nothing where it fails, which is recorded when it is carried out."""
    try:
        with remembering(on=False):
            return explainer(one.changed(), Key(seed)).cost  # with no answers at hand
    except Exception:
        return Cost()


def price_of_scores(metrics: Mapping[str, Metric], task: Task, seed: int) -> Price:
    """What the scores of one map ask per sample, a first time and once more."""
    one = ordinary(task)
    maps = [Random()(one, Key(seed) / "draw" / draw) for draw in range(2)]
    asked = [0, 0]
    with sharing(one), remembering(on=False):
        for draw, made in enumerate(maps):
            for metric in metrics.values():
                try:
                    asked[draw] += rows(metric(one, made, Key(seed)).cost)
                except Exception:  # it fails again where that is recorded
                    continue
    few = has_few(task, task.fill)
    if few is None or not bool(few.all()):
        return Price(asked[0], asked[1])
    subsets = float((2.0 ** task.space.counts(len(task))).mean())
    return Price(asked[0], asked[1], subsets * task.fill.repeats_on(task))
