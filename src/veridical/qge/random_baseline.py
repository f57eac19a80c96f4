"""QRAND: how much better an explanation is than random rankings of its own values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from veridical.core.allowed import Count, Index
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers.base import Explainer
from veridical.explainers.transforms import Transform
from veridical.metrics.base import TIED_PAIRS, AnyMetric, ExplainerMetric, Metric, Outcome, registry
from veridical.metrics.tie_orders import TIE_VARIANCE
from veridical.perturb.shared_work import sharing
from veridical.qge.paths import path_of, scores_along
from veridical.qge.rankings import digest, random_orders
from veridical.qge.relative import Relative, add_wrapper, joined, undefined
from veridical.values.explanation import Explanation
from veridical.values.task import Task


@dataclass(frozen=True)
class _AboveRandom(Relative):
    """psi(e) less the mean of psi over `draws` random rankings that carry e's own values."""

    draws: Count = 1
    """Random rankings per map, over whose quality the mean is taken."""
    prefix: ClassVar[str] = "qrand"
    question: ClassVar[str] = "And how much better than random rankings of its values?"

    def above(self, outcome: Outcome, randoms: list[Outcome]) -> Outcome:
        """The outcome less the mean of the random ones, higher is better."""
        quality = self.quality(outcome)
        other = torch.stack([self.quality(o) for o in randoms], -1).mean(-1)
        flags = joined(outcome.flags, *(o.flags for o in randoms))
        ties = {name: outcome.details[name] for name in (TIED_PAIRS, TIE_VARIANCE) if name in outcome.details}
        details = {**ties, "quality": quality, "random quality": other}
        return Outcome(quality - other, flags, details=details)


@dataclass(frozen=True)
class MapAboveRandom(_AboveRandom, Metric):
    """QRAND_K of a metric that judges maps: psi(e) - mean_k psi(r_k), lower-is-better negated first (eq. 7).

    The r_k are drawn for each explanation on its own, keyed by its ranking: rankings shared by all would
    only subtract a constant.
    """

    def evaluate(self, task: Task, explanation: Explanation, key: Key) -> Outcome:
        assert isinstance(self.metric, Metric)
        if self.metric.permutation_invariant:
            return undefined(task)
        own = self.own_key(key)
        drawn = orders_for(explanation, task.ids, key, self.draws)
        path = path_of(self.metric, task)
        if path is None:
            maps = [explanation, *(explanation.along(drawn[:, k]) for k in range(self.draws))]
            with sharing(task):
                first, *randoms = [self.metric.evaluate(task, map_, own) for map_ in maps]
            return self.above(first, randoms)
        if explanation.has_ties:
            values = scores_along(task, path, lambda at, n: drawn[:, at : at + n], self.draws, own)
            first = self.metric.evaluate(task, explanation, own)
            return self.above(first, [Outcome(v) for v in values.unbind(-1)])
        orders = torch.cat([explanation.order[:, None], drawn], 1)
        values = scores_along(task, path, lambda at, n: orders[:, at : at + n], self.draws + 1, own)
        return self.above(Outcome(values[:, 0]), [Outcome(v) for v in values[:, 1:].unbind(-1)])


@dataclass(frozen=True)
class MethodAboveRandom(_AboveRandom, ExplainerMetric):
    """QRAND_K of a metric that judges methods: the random methods shuffle each map of the one judged.

    Every map is shuffled anew, keyed by its own ranking, as a method without knowledge would do.
    """

    def evaluate(self, task: Task, explainer: Explainer, key: Key) -> Outcome:
        assert isinstance(self.metric, ExplainerMetric)
        own = self.own_key(key)
        randoms = [self.metric.evaluate(task, Reshuffled(explainer, k), own) for k in range(self.draws)]
        return self.above(self.metric.evaluate(task, explainer, own), randoms)


@dataclass(frozen=True)
class Reshuffled(Transform):
    """Another explainer's values along a random ranking, another one for every map it gives."""

    draw: Index = 0
    """Which of the independent rankings to take, counted from 0."""
    kind: ClassVar[str] = "reshuffled"

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        return True

    def transform(self, explanation: Explanation, key: Key) -> Explanation:
        drawn = orders_for(explanation, explanation.ids, key, self.draw + 1)
        return explanation.along(drawn[:, self.draw])


def orders_for(explanation: Explanation, ids: Tensor, key: Key, draws: int) -> Tensor:
    """Random rankings (N, draws, V) of this explanation's own."""
    which = torch.arange(draws, device=ids.device)
    return random_orders(
        key, ids + digest(explanation), which, explanation.space.n_features, explanation.valid
    )


@overload
def QRand(metric: Metric, draws: int = ...) -> MapAboveRandom: ...
@overload
def QRand(metric: ExplainerMetric, draws: int = ...) -> MethodAboveRandom: ...
@overload
def QRand(metric: AnyMetric | str, draws: int = ...) -> MapAboveRandom | MethodAboveRandom: ...
def QRand(metric: Any, draws: int = 1) -> MapAboveRandom | MethodAboveRandom:  # noqa: N802 (reads as a class)
    """A metric less its mean over `draws` random rankings of the same values (QRAND_K, QGE eq. 7).

    >>> QRand("pixel_flipping", draws=5).name
    'qrand:pixel_flipping'
    """
    chosen = registry.make(metric) if isinstance(metric, str) else metric
    if isinstance(chosen, Metric):
        return MapAboveRandom(chosen, draws)
    if isinstance(chosen, ExplainerMetric):
        return MethodAboveRandom(chosen, draws)
    raise InputError(f"QRand takes a metric or its name, got {type(metric).__name__}")


add_wrapper("qrand", QRand)
