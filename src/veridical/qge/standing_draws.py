"""Random rankings beside which an explanation, or a method, is placed, and what its place among them is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.explainers.base import Explainer
from veridical.explainers.transforms import Inverted
from veridical.metrics.base import ExplainerMetric, Metric, RankingMetric
from veridical.perturb.shared_work import sharing
from veridical.qge.gap import paired
from veridical.qge.paths import path_of, scores_along
from veridical.qge.random_baseline import Reshuffled
from veridical.qge.rankings import random_orders, reversed_orders
from veridical.values.explanation import Explanation
from veridical.values.scores import Direction
from veridical.values.task import Task
from veridical.values.weak_orders import TieOrders

TIE_WITHIN = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""How close two scores are, as a share of the largest of their sample, to tie in each precision."""


def sign_of(metric: Metric | ExplainerMetric) -> float:
    """What makes a metric's scores higher-is-better."""
    return 1.0 if metric.better is Direction.HIGHER else -1.0


@dataclass(frozen=True, eq=False)
class MapDraws:
    """Scores of random rankings that carry an explanation's values; the rankings follow the sample alone."""

    metric: Metric
    explanation: Explanation
    key: Key
    own: Key

    def own_scores(self, task: Task) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the map and its inverse (N, K) along rankings that agree with it; how many count."""
        if isinstance(self.metric, RankingMetric):
            orders = self.metric.tie_orders(task, self.explanation, self.own)
        else:
            orders = TieOrders.of(self.explanation)
        both = torch.full((2, len(task), orders.most), torch.nan, dtype=torch.float64, device=task.device)
        for which in range(orders.most):
            further = orders.beyond(which)
            rows = torch.tensor(further, device=task.device)
            part, some = (task, orders) if len(rows) == len(task) else (task[rows], orders.take(further))
            map_ = some.strict(which, self.own) if orders.most > 1 else self.explanation
            outcomes = paired(self.metric, part, map_, map_.inverted(), self.own)
            both[:, rows, which] = torch.stack([o.values.double() for o in outcomes])
        quality, inverse = sign_of(self.metric) * both
        return quality, inverse, orders.counts

    def take(self, rows: Tensor) -> MapDraws:
        """Those of some of the samples."""
        return MapDraws(self.metric, self.explanation.take(rows), self.key, self.own)

    def _orders(self, task: Task, first: int, count: int) -> Tensor:
        which = torch.arange(first, first + count, device=task.device)
        return random_orders(self.key, task.ids, which, task.space.n_features, task.space.valid)

    def pairs(self, task: Task, start: int, count: int) -> Tensor:
        """(N, count, 2): the scores of rankings and of their inverses."""
        path = path_of(self.metric, task)
        if path is not None:
            # a ranking and then its inverse, drawn as they are asked for
            def both(first: int, rankings: int) -> Tensor:
                which = range(first // 2, (first + rankings + 1) // 2)
                orders = self._orders(task, start + which.start, len(which))
                turned = torch.stack([orders, reversed_orders(orders, task.space.valid)], 2).flatten(1, 2)
                return turned[:, first % 2 :][:, :rankings]

            scores = scores_along(task, path, both, 2 * count, self.own)
            return sign_of(self.metric) * scores.unflatten(1, (count, 2))
        orders = self._orders(task, start, count)
        columns = []
        with sharing(task):
            for k in range(count):
                map_ = self.explanation.along(orders[:, k])
                outcomes = paired(self.metric, task, map_, map_.inverted(), self.own)
                columns.append(torch.stack([o.values.double() for o in outcomes], -1))
        return sign_of(self.metric) * torch.stack(columns, 1)

    def plain(self, task: Task, first: int, count: int) -> Tensor:
        """(N, count): the scores of further rankings."""
        path = path_of(self.metric, task)
        if path is not None:
            scores = scores_along(
                task, path, lambda at, n: self._orders(task, first + at, n), count, self.own
            )
            return sign_of(self.metric) * scores
        orders = self._orders(task, first, count)
        with sharing(task):
            maps = [self.explanation.along(orders[:, k]) for k in range(count)]
            columns = [self.metric.evaluate(task, map_, self.own).values.double() for map_ in maps]
        return sign_of(self.metric) * torch.stack(columns, 1)


@dataclass(frozen=True, eq=False)
class MethodDraws:
    """The same of a metric that judges methods: random methods shuffle each map of the one judged."""

    metric: ExplainerMetric
    explainer: Explainer
    own: Key

    def _score(self, task: Task, explainer: Explainer) -> Tensor:
        return sign_of(self.metric) * self.metric.evaluate(task, explainer, self.own).values.double()

    def own_scores(self, task: Task) -> tuple[Tensor, Tensor, Tensor]:
        quality, inverse = (self._score(task, e)[:, None] for e in (self.explainer, Inverted(self.explainer)))
        return quality, inverse, torch.ones_like(task.ids)

    def take(self, rows: Tensor) -> MethodDraws:
        """Samples are asked about by the task alone."""
        return self

    def pairs(self, task: Task, start: int, count: int) -> Tensor:
        """(N, count, 2): the scores of random methods and of their inverses."""
        columns = []
        for k in range(start, start + count):
            random = Reshuffled(self.explainer, k)
            columns.append(torch.stack([self._score(task, e) for e in (random, Inverted(random))], -1))
        return torch.stack(columns, 1)

    def plain(self, task: Task, first: int, count: int) -> Tensor:
        """(N, count): the scores of further random methods."""
        randoms = [Reshuffled(self.explainer, k) for k in range(first, first + count)]
        return torch.stack([self._score(task, random) for random in randoms], 1)


def places(sample: Tensor, quality: Tensor, tolerance: Tensor | float) -> Tensor:
    """1 where a score lies below the quality, 1/2 where it ties, 0 above."""
    difference = quality.reshape(-1, *[1] * (sample.dim() - 1)) - sample
    tied = difference.abs() <= tolerance
    return torch.where(tied, 0.5, (difference > 0).double())


def mean_places(sample: Tensor, quality: Tensor, tolerance: Tensor) -> Tensor:
    """The mean place over the rankings (N, K) that agree with a map, those that are NaN left out."""
    near = tolerance.reshape(-1, *[1] * (sample.dim() - 1))
    each = torch.stack([places(sample, q, near) for q in quality.unbind(-1)], -1)
    there = ~quality.isnan().reshape(len(quality), *[1] * (sample.dim() - 1), -1)
    return torch.where(there, each, 0.0).sum(-1) / there.sum(-1).clamp(min=1)


def tie_tolerance(task: Task, *scores: Tensor) -> Tensor:
    """How close scores of a sample tie (N,): a share of the largest that it has."""
    largest = [s.nan_to_num(0.0).abs().reshape(len(s), -1).amax(-1) for s in scores]
    return TIE_WITHIN.get(task.outputs.dtype, 1e-5) * torch.stack(largest).amax(0)


def pairing(place: Tensor) -> Tensor:
    """The variance (N,) of a pair's mean over half that of one draw, of places in pairs (N, K, 2)."""
    single = place.var(dim=(1, 2), correction=0)
    # 0 / 0, which is NaN, where nothing varies
    return place.mean(-1).var(-1, correction=0) / (single / 2)


def interval(units: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """An interval for the mean of sampling units (N, K) in [0, 1].

    Two units at 0 and two at 1 are added first (Agresti and Coull's rule): a percentile near 0 or 1 then
    keeps an honest width although all units agree.
    """
    extra = units.new_tensor([0.0, 0.0, 1.0, 1.0]).expand(len(units), 4)
    more = torch.cat([units, extra], 1)
    z = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    half = z * more.std(-1) / more.shape[1] ** 0.5
    middle = more.mean(-1)
    return (middle - half).clamp(min=0.0), (middle + half).clamp(max=1.0)
