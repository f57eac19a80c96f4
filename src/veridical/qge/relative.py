"""What QGE and QRAND share: metrics made of another metric, named after it and otherwise like it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.core.settings import taken_from
from veridical.metrics.base import AnyMetric, Outcome, registry
from veridical.metrics.randomisation.mprt import Mprt
from veridical.metrics.randomisation.random_logit import RandomLogit
from veridical.values.scores import Direction
from veridical.values.task import Task

IDENTICALLY_ZERO = "identically 0: the metric does not tell a map from its rearrangements"
_WRAPPERS: dict[str, Callable[..., AnyMetric]] = {}


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

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.prefix}:{self.metric.name}"

    @property
    def summary(self) -> str:  # type: ignore[override]
        return f"{self.metric.summary} {self.question}"

    @property
    def paper(self) -> str:  # type: ignore[override]
        return f"Eiras-Franco et al. 2025; of {self.metric.paper}"

    def why_not(self, task: Task) -> str | None:
        return self.metric.why_not(task)

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


def add_wrapper(prefix: str, wrap: Callable[..., AnyMetric]) -> None:
    """Let 'prefix:name' be a metric's name, in JSON too."""
    _WRAPPERS[prefix] = wrap
    registry.add_prefix(prefix, wrap)


def metric_from_json(data: dict[str, Any]) -> AnyMetric:
    """The metric, wrapped or not, that `to_json` described."""
    wrap = _WRAPPERS.get(data["name"].partition(":")[0]) if ":" in data["name"] else None
    if wrap is not None:
        inner = metric_from_json(data["metric"])
        return type(wrap(inner)).from_json({**data, "metric": inner})
    maker: Any = registry.maker(data["name"])
    made: AnyMetric = maker.from_json(data)
    return made


def unmoved_by_inversion(metric: AnyMetric) -> bool:
    """Whether a map and its inverse must score alike.

    So it is where permuting a map's values changes nothing, and where two maps, both inverted, are compared
    by the correlation of their ranks. (Not so smooth MPRT, which inverts maps before it averages them.) A
    metric can say so itself by `inversion_invariant`.
    """
    said = getattr(metric, "inversion_invariant", None)
    if said is not None:
        return bool(said)
    if type(metric) in (Mprt, RandomLogit):
        return metric.similarity == "spearman" and not metric.absolute  # type: ignore[attr-defined]
    return metric.permutation_invariant


def undefined(task: Task) -> Outcome:
    """No value for any sample: a constant 0 would be ranked."""
    everywhere = torch.ones(len(task), dtype=torch.bool, device=task.device)
    nothing = torch.full((len(task),), torch.nan, dtype=torch.float64, device=task.device)
    return Outcome(nothing, {IDENTICALLY_ZERO: everywhere})


def joined(*flags: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Flags of several outcomes: a sample carries those it carries in any."""
    out: dict[str, Tensor] = {}
    for some in flags:
        for reason, mask in some.items():
            out[reason] = out[reason] | mask if reason in out else mask
    return out
