"""Selectivity: remove whole regions, most relevant first, and watch the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veridical.functional import area_under_curve
from veridical.metrics import Count, Outcome, register
from veridical.metrics.faithfulness._common import RegionMetric
from veridical.metrics.types import Context, Curve, Direction, Explanation, Fill, Response, Task
from veridical.values.regions import Regions, squares


@register
@dataclass(frozen=True)
class Selectivity(RegionMetric):
    """The area under the response as all regions are removed, in the order of their summed relevance.

    Regions are squares of `patch` x `patch` pixels, or the features themselves where they are no pixels; the
    axis is the share of regions removed, on [0, 1]. Lower is better.
    """

    patch: Count = 8
    """Side of a region, in pixels."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "selectivity"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the response fall fast when regions are removed by relevance?"
    assumes: ClassVar[str] = "relevance adds up over a region, and masked inputs are like training inputs"
    misleads: ClassVar[str] = "when evidence is finer than a region, or signed relevance cancels inside it"
    paper: ClassVar[str] = "Montavon et al. 2018"

    def regions_of(self, task: Task) -> Regions:
        return squares(task.space, self.patch)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        responses, order = self.without_regions(task, explanation, context, self.regions_of(task).count)
        share = order.share(order.gone.shape[-1])
        return Outcome(
            area_under_curve(responses, share),
            curve=Curve(share.mean(0), responses, "share of regions removed", self.response),
        )
