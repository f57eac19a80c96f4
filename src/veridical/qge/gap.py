"""QGE: how much better an explanation is than its own inverse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, overload

import torch

from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers.base import Explainer
from veridical.explainers.transforms import Inverted
from veridical.metrics.base import AnyMetric, ExplainerMetric, Metric, Outcome, RankingMetric, registry
from veridical.metrics.tie_orders import over_orders
from veridical.perturb.rules import removed_share
from veridical.perturb.shared_work import sharing
from veridical.qge.paths import RankPath, path_of, responses_along
from veridical.qge.relative import Relative, add_wrapper, joined, undefined, unmoved_by_inversion
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction
from veridical.values.task import Task
from veridical.values.weak_orders import TieOrders


@dataclass(frozen=True)
class _Gap(Relative):
    """psi(e) - psi(e_inv), where both meet the same draws unless `independent_draws`."""

    independent_draws: bool = False
    """Whether the inverse map meets random draws of its own."""
    prefix: ClassVar[str] = "qge"
    question: ClassVar[str] = "And how much better than its own inverse?"

    @property
    def inversion_invariant(self) -> bool:
        """A gap changes its sign under inversion, so it is 0 throughout only if it was to begin with."""
        return unmoved_by_inversion(self.metric)

    def gap(self, outcome: Outcome, inverse: Outcome) -> Outcome:
        """The difference of two outcomes, higher is better."""
        quality, other = self.quality(outcome), self.quality(inverse)
        curve = None
        if outcome.curve is not None and inverse.curve is not None:
            # higher is better along the curve, too, so that its sign is that of the value
            sign = 1.0 if self.metric.better is Direction.HIGHER else -1.0
            down = sign * (outcome.curve.y.double() - inverse.curve.y.double())
            curve = replace(outcome.curve, y=down, y_label=f"{outcome.curve.y_label}, less the inverse")
        return Outcome(
            quality - other,
            joined(outcome.flags, inverse.flags),
            curve,
            {"quality": quality, "inverse quality": other},
        )

    def keys(self, key: Key) -> tuple[Key, Key]:
        """Keys for the map and for its inverse."""
        own = self.own_key(key)
        return own, own / "inverse" if self.independent_draws else own


@dataclass(frozen=True)
class MapGap(_Gap, Metric):
    """QGE of a metric that judges maps: psi(e) - psi(e_inv), lower-is-better metrics negated first (eq. 5).

    The inverse reverses the ranking and re-assigns the sorted values along it (eq. 4), so above 0 always
    means better than its own inverse. A metric of one flipping curve of D steps costs 2D - 1 evaluations.
    """

    version: ClassVar[int] = 2

    def evaluate(self, task: Task, explanation: Explanation, key: Key) -> Outcome:
        assert isinstance(self.metric, Metric)
        if unmoved_by_inversion(self.metric):
            return undefined(task)
        ranks = isinstance(self.metric, RankingMetric)
        with sharing(task):
            orders = replace(self._orders(task, explanation, key), mirrored=True)
            return over_orders(partial(self._along, key), task, orders, key, whole=not ranks)

    def _orders(self, task: Task, explanation: Explanation, key: Key) -> TieOrders:
        """The rankings that agree with the map; each is judged together with its reverse."""
        metric = self.metric
        if isinstance(metric, RankingMetric) and (metric.ranks_only or metric.ties == "stable"):
            return metric.tie_orders(task, explanation, key)
        # where a metric reads values, those of the inverse depend on the ranking even if its own do not
        return TieOrders.of(explanation)

    def _along(self, key: Key, task: Task, explanation: Explanation, which: int) -> Outcome:
        assert isinstance(self.metric, Metric)
        own, other = self.keys(key)
        inverse = explanation.inverted()
        if not self.independent_draws:
            return self.gap(*paired(self.metric, task, explanation, inverse, own))
        both = self.metric.evaluate(task, explanation, own), self.metric.evaluate(task, inverse, other)
        return self.gap(*both)

    def pair(
        self, task: Task, explanation: Explanation, inverse: Explanation, key: Key
    ) -> tuple[Outcome, Outcome]:
        """The gap of a map and of its inverse, which is the same with the sign changed."""
        gap = self.evaluate(task, explanation, key)
        details = {"quality": gap.details["inverse quality"], "inverse quality": gap.details["quality"]}
        curve = None if gap.curve is None else replace(gap.curve, y=-gap.curve.y)
        return gap, Outcome(-gap.values, gap.flags, curve, details)


@dataclass(frozen=True)
class MethodGap(_Gap, ExplainerMetric):
    """QGE of a metric that judges methods: psi(phi) - psi(phi_inv), where phi_inv inverts each map of phi."""

    def evaluate(self, task: Task, explainer: Explainer, key: Key) -> Outcome:
        assert isinstance(self.metric, ExplainerMetric)
        if unmoved_by_inversion(self.metric):
            return undefined(task)
        own, other = self.keys(key)
        return self.gap(
            self.metric.evaluate(task, explainer, own),
            self.metric.evaluate(task, Inverted(explainer), other),
        )


@overload
def QGE(metric: Metric, independent_draws: bool = ...) -> MapGap: ...
@overload
def QGE(metric: ExplainerMetric, independent_draws: bool = ...) -> MethodGap: ...
@overload
def QGE(metric: AnyMetric | str, independent_draws: bool = ...) -> MapGap | MethodGap: ...
def QGE(metric: Any, independent_draws: bool = False) -> MapGap | MethodGap:  # noqa: N802 (reads as a class)
    """The quality gap estimate of a metric: how much better a map is than its own inverse (QGE eq. 5).

    The result is a metric like the one given (an object, or a name): it judges maps or methods, is above 0
    where the map beats its inverse, and may be wrapped again. `independent_draws` gives the inverse draws of
    its own, as the paper did for faithfulness correlation (Table 3).

    >>> QGE("pixel_flipping").name
    'qge:pixel_flipping'
    """
    chosen = registry.make(metric) if isinstance(metric, str) else metric
    if isinstance(chosen, Metric):
        return MapGap(chosen, independent_draws)
    if isinstance(chosen, ExplainerMetric):
        return MethodGap(chosen, independent_draws)
    raise InputError(f"QGE takes a metric or its name, got {type(metric).__name__}")


def paired(
    metric: Metric, task: Task, explanation: Explanation, inverse: Explanation, key: Key
) -> tuple[Outcome, Outcome]:
    """The outcomes of a map and of its inverse under the same draws, sharing what they can.

    A metric that knows both at once offers `pair(task, explanation, inverse, key)`; one that walks a path
    of nested sets shares its ends; all others are asked twice, and what they ask whatever the map, once.
    """
    offered = getattr(metric, "pair", None)
    if callable(offered):
        outcomes: tuple[Outcome, Outcome] = offered(task, explanation, inverse, key)
        return outcomes
    path = path_of(metric, task)
    if path is None:
        with sharing(task):
            return metric.evaluate(task, explanation, key), metric.evaluate(task, inverse, key)
    both = torch.stack([explanation.order, inverse.order], 1)
    responses = responses_along(task, path, both, key)
    values = path.score(responses)
    share = removed_share(task, path.counts).mean(0)
    first, second = (Outcome(values[:, i], curve=_curve(path, share, responses[:, i])) for i in range(2))
    return first, second


def _curve(path: RankPath, share: torch.Tensor, responses: torch.Tensor) -> Curve:
    return Curve(share, responses, "share of features removed", path.response)


add_wrapper("qge", QGE)
