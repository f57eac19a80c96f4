"""QGE and QRAND: how much better a map is than its own inverse, and than random rankings of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.core.settings import taken_from
from veridical.errors import InputError
from veridical.explainers.base import Explainer
from veridical.explainers.transforms import Inverted
from veridical.metrics.base import TIED_PAIRS, AnyMetric, ExplainerMetric, Metric, Outcome, registry
from veridical.metrics.faithfulness._common import RankPath
from veridical.metrics.tie_orders import TIE_VARIANCE, over_orders
from veridical.models.context import Context
from veridical.perturb.rules import removed_share
from veridical.qge.paths import digest, path_of, random_orders, responses_along, scores_along
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction
from veridical.values.task import Task
from veridical.values.ties import TieOrders

IDENTICALLY_ZERO = "identically 0: the metric does not tell a map from its rearrangements"


@dataclass(frozen=True)
class Relative(AnyMetric):
    """Base of metrics that compare a map with rearrangements of itself; higher is always better."""

    metric: AnyMetric
    """The metric that judges both maps."""
    prefix: ClassVar[str] = ""
    question: ClassVar[str] = ""
    direction: ClassVar[Direction] = Direction.HIGHER
    category: ClassVar[Any] = taken_from("metric", "category")
    assumes: ClassVar[Any] = taken_from("metric", "assumes")
    misleads: ClassVar[Any] = taken_from("metric", "misleads")
    modalities: ClassVar[Any] = taken_from("metric", "modalities")
    needs: ClassVar[Any] = taken_from("metric", "needs")
    ranks_only: ClassVar[Any] = taken_from("metric", "ranks_only")
    averages_ties: ClassVar[bool | None] = False  # rankings are judged together with their inverses

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.prefix}:{self.metric.name}"

    @property
    def summary(self) -> str:  # type: ignore[override]
        return f"{self.metric.summary} {self.question}"

    @property
    def paper(self) -> str:  # type: ignore[override]
        return f"Eiras-Franco et al. 2025; of {self.metric.paper}"

    def inapplicable_reason(self, task: Task) -> str | None:
        return self.metric.inapplicable_reason(task)

    def own_key(self, key: Key) -> Key:
        """The key the inner metric would get if it were asked alone, so that it meets the same draws."""
        return key.parent / self.metric.name

    def quality(self, outcome: Outcome) -> Tensor:
        """The inner metric's values, negated where lower is better."""
        values = outcome.values.double()
        return values if self.metric.better is Direction.HIGHER else -values

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        inner = data["metric"]
        if isinstance(inner, Mapping):
            inner = metric_from_json(dict(inner))
        return super().from_json({**data, "metric": inner})


def metric_from_json(data: dict[str, Any]) -> AnyMetric:
    """The metric, wrapped or not, that `to_json` described."""
    wrap = registry.prefixes.get(data["name"].partition(":")[0]) if ":" in data["name"] else None
    if wrap is not None:
        inner = metric_from_json(data["metric"])
        return type(wrap(inner)).from_json({**data, "metric": inner})
    maker: Any = registry.maker(data["name"])
    made: AnyMetric = maker.from_json(data)
    return made


def unmoved_by_inversion(metric: AnyMetric) -> bool:
    """Whether a map and its inverse must score alike.

    So it is where permuting a map's values changes nothing, and where a metric says so by
    `inversion_invariant`.
    """
    return bool(getattr(metric, "inversion_invariant", metric.permutation_invariant))


def undefined(task: Task) -> Outcome:
    """No value for any sample: a constant 0 would be ranked."""
    everywhere = torch.ones(len(task), dtype=torch.bool, device=task.device)
    nothing = torch.full((len(task),), torch.nan, dtype=torch.float64, device=task.device)
    return Outcome(nothing, {IDENTICALLY_ZERO: everywhere})


def joined(*flags: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Flags of several outcomes: a sample carries those it carries in any."""
    reasons = dict.fromkeys(reason for some in flags for reason in some)
    return {r: torch.stack([some[r] for some in flags if r in some]).any(0) for r in reasons}


@dataclass(frozen=True)
class _Gap(Relative):
    """psi(e) - psi(e_inv), where both meet the same draws unless `independent_draws`."""

    independent_draws: bool = False
    """Whether the inverse map meets random draws of its own."""
    inverse: Literal["reversed", "negated"] = "reversed"
    """The inverse: the map's own values along the reversed ranking (eq. 4), or its values negated."""
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

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        assert isinstance(self.metric, Metric)
        if unmoved_by_inversion(self.metric):
            return undefined(task)
        ranks = self.metric.over_orders
        orders = replace(self._orders(task, explanation, context.key), mirrored=True)
        return over_orders(partial(self._along, context), task, orders, context.key, whole=not ranks)

    def _orders(self, task: Task, explanation: Explanation, key: Key) -> TieOrders:
        """The rankings that agree with the map; each is judged together with its reverse."""
        metric = self.metric
        assert isinstance(metric, Metric)
        if metric.over_orders and (metric.ranks_only or metric.ties == "stable"):
            return metric.tie_orders(task, explanation, key)
        # where a metric reads values, those of the inverse depend on the ranking even if its own do not
        return TieOrders.of(explanation)

    def _along(self, context: Context, task: Task, explanation: Explanation, which: int) -> Outcome:
        assert isinstance(self.metric, Metric)
        own, other = map(context.with_key, self.keys(context.key))
        inverse = explanation.inverted(self.inverse == "negated")
        if not self.independent_draws:
            return self.gap(*paired(self.metric, task, explanation, inverse, own))
        evaluate = self.metric.evaluate_with_ties
        return self.gap(evaluate(task, explanation, own), evaluate(task, inverse, other))


@dataclass(frozen=True)
class MethodGap(_Gap, ExplainerMetric):
    """QGE of a metric that judges methods: psi(phi) - psi(phi_inv), where phi_inv inverts each map of phi."""

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        assert isinstance(self.metric, ExplainerMetric)
        if unmoved_by_inversion(self.metric):
            return undefined(task)
        own, other = self.keys(context.key)
        return self.gap(
            self.metric.evaluate(task, explainer, context.with_key(own)),
            self.metric.evaluate(
                task, Inverted(explainer, self.inverse == "negated"), context.with_key(other)
            ),
        )


@dataclass(frozen=True)
class MapAboveRandom(Relative, Metric):
    """QRAND_K of a metric: psi(e) - mean_k psi(r_k), lower-is-better negated first (eq. 7).

    The r_k carry e's own values and are drawn for each explanation on its own, keyed by its ranking: rankings
    shared by all would only subtract a constant.
    """

    draws: Count = 1
    """Random rankings per map, over whose quality the mean is taken."""
    prefix: ClassVar[str] = "qrand"
    question: ClassVar[str] = "And how much better than random rankings of its values?"

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        assert isinstance(self.metric, Metric)
        if self.metric.permutation_invariant:
            return undefined(task)
        own = context.with_key(self.own_key(context.key))
        drawn = orders_for(explanation, task.draw_ids, context.key, self.draws)
        path = path_of(self.metric, task)
        first = self.metric.evaluate_with_ties(task, explanation, own)
        if path is not None:
            values = scores_along(task, path, lambda at, n: drawn[:, at : at + n], self.draws, own)
            randoms = [*map(Outcome, values.unbind(-1))]
        else:
            maps = (explanation.along(order) for order in drawn.unbind(1))
            randoms = [self.metric.evaluate_with_ties(task, map_, own) for map_ in maps]
        quality = self.quality(first)
        other = torch.stack([self.quality(each) for each in randoms], -1).mean(-1)
        ties = {name: first.details[name] for name in (TIED_PAIRS, TIE_VARIANCE) if name in first.details}
        flags = joined(first.flags, *(each.flags for each in randoms))
        return Outcome(quality - other, flags, details={**ties, "quality": quality, "random quality": other})


def orders_for(explanation: Explanation, ids: Tensor, key: Key, draws: int) -> Tensor:
    """Random rankings (N, draws, V) of this explanation's own."""
    which = torch.arange(draws, device=ids.device)
    return random_orders(
        key, ids + digest(explanation), which, explanation.space.n_features, explanation.valid
    )


def QGE(  # noqa: N802 (reads as a class)
    metric: Any, independent_draws: bool = False, inverse: Literal["reversed", "negated"] = "reversed"
) -> MapGap | MethodGap:
    """Estimate by a metric how much better a map is than its own inverse (the quality gap, QGE eq. 5).

    Parameters
    ----------
    metric : Metric, ExplainerMetric or str
        The metric that scores the map and its inverse, or its name.
    independent_draws : bool
        Whether the inverse meets random draws of its own, as in the paper's Table 3.
    inverse : str
        "reversed" re-assigns the map's own values along the reversed ranking (eq. 4); "negated" takes -e, as
        section 3.3 allows: the same ranking, but other magnitudes, so metrics that read values differ.

    Returns
    -------
    MapGap or MethodGap
        A metric like the one given, of maps or of methods: above 0 where the map beats its inverse. It may be
        wrapped again.

    Examples
    --------
    >>> QGE("pixel_flipping").name
    'qge:pixel_flipping'
    """
    chosen = _metric(metric, "QGE")
    return (MapGap if isinstance(chosen, Metric) else MethodGap)(chosen, independent_draws, inverse)


def QRand(metric: Any, draws: int = 1) -> MapAboveRandom:  # noqa: N802 (reads as a class)
    """Estimate by a metric how much better a map is than random rankings of its values (QRAND_K, eq. 7).

    Parameters
    ----------
    metric : Metric or str
        The metric that scores the map and the random rankings, or its name. One that judges methods has no
        QRAND: random rankings know no method (section 4.1.d).
    draws : int
        Random rankings per map, over whose scores the mean is taken.

    Returns
    -------
    MapAboveRandom
        A metric like the one given; higher is better.

    Examples
    --------
    >>> QRand("pixel_flipping", draws=5).name
    'qrand:pixel_flipping'
    """
    chosen = _metric(metric, "QRand")
    if not isinstance(chosen, Metric):
        raise InputError(f"'{chosen.name}' judges methods, which random rankings do not have; use vd.qge.QGE")
    return MapAboveRandom(chosen, draws)


def _metric(metric: Any, who: str) -> AnyMetric:
    chosen = registry.make(metric) if isinstance(metric, str) else metric
    if not isinstance(chosen, Metric | ExplainerMetric):
        raise InputError(f"{who} takes a metric or its name, got {type(metric).__name__}")
    return chosen


def paired(
    metric: Metric, task: Task, explanation: Explanation, inverse: Explanation, context: Context
) -> tuple[Outcome, Outcome]:
    """The outcomes of a map and of its inverse under the same draws, sharing what they can.

    A metric that walks a path of nested sets shares its ends; all others are evaluated twice, and what they
    evaluate whatever the map, once.
    """
    path = path_of(metric, task)
    if path is None:
        first, second = (metric.evaluate_with_ties(task, e, context) for e in (explanation, inverse))
        return first, second
    both = torch.stack([explanation.order, inverse.order], 1)
    responses = responses_along(task, path, both, context)
    values = path.score(responses)
    share = removed_share(task, path.counts).mean(0)
    first, second = (Outcome(values[:, i], curve=_curve(path, share, responses[:, i])) for i in range(2))
    return first, second


def _curve(path: RankPath, share: torch.Tensor, responses: torch.Tensor) -> Curve:
    return Curve(share, responses, "share of features removed", path.response)


registry.add_prefix("qge", QGE)
registry.add_prefix("qrand", QRand)
