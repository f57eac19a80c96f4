"""Selectivity: remove whole regions, most relevant first, and watch the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.core.allowed import Count
from veridical.functional import area_under_curve
from veridical.metrics.base import Outcome, RankingMetric, register
from veridical.metrics.types import Curve, Direction, Explanation, Fill, Key, Response, Task
from veridical.perturb.probe import probe
from veridical.perturb.rules import RankThreshold
from veridical.values.regions import removal, squares


@register
@dataclass(frozen=True)
class Selectivity(RankingMetric):
    """The area under the response as all regions are removed, in the order of their summed relevance.

    Regions are squares of `patch` x `patch` pixels, or the features themselves where they are no pixels; the
    axis is the share of regions removed, on [0, 1]. Lower is better.
    """

    patch: Count = 8
    """Side of a region, in pixels."""
    response: Response = "probability"
    """The scale on which answers are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "selectivity"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the response fall fast when regions are removed by relevance?"
    assumes: ClassVar[str] = "relevance adds up over a region, and masked inputs can be judged"
    misleads: ClassVar[str] = "when evidence is finer than a region, or signed relevance cancels inside it"
    paper: ClassVar[str] = "Montavon et al. 2018"

    def sees_ties(self, task: Task, explanation: Explanation) -> Tensor:
        regions = squares(task.space, self.patch)
        return regions.tied(regions.relevance(explanation.values))

    def along(self, task: Task, explanation: Explanation, key: Key) -> Outcome:
        regions = squares(task.space, self.patch)
        ranks = None if self.ties == "stable" else explanation.ranks
        order = removal(regions, regions.relevance(explanation.values), ranks=ranks)
        rule = RankThreshold(order.ranks, order.gone)
        responses = probe(task, rule, response=self.response, fill=self.fill, key=key, with_clean=True)
        share = order.share(rule.count)
        return Outcome(
            area_under_curve(responses, share),
            curve=Curve(share.mean(0), responses, "share of regions removed", self.response),
        )
