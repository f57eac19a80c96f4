"""Pixel flipping: remove features in the order of the map and watch the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from veridical.functional import area_under_curve
from veridical.metrics import Count, Outcome, RankingMetric, register
from veridical.metrics.faithfulness._common import RankPath, trapezoid
from veridical.metrics.types import Context, Curve, Direction, Explanation, Fill, Response, Task
from veridical.perturb.rules import RankThreshold, check_steps, removed_share, step_counts


def flipping_area(responses: Tensor, removed_share: Tensor) -> Tensor:
    """The area under the response over the share of features removed (trapezoid; GEF eq. 25)."""
    return area_under_curve(responses, removed_share)


@register
@dataclass(frozen=True)
class PixelFlipping(RankingMetric):
    """The area under the response curve as features are removed, most relevant first.

    With y_k the response after k steps and p_k the share of features gone, the area is
    sum_k (y_k + y_{k+1}) (p_{k+1} - p_k) / 2 on [0, 1], from the untouched input to one without features.
    With `order="lerf"` the area should be large and higher is better.
    """

    order: Literal["morf", "lerf"] = "morf"
    """What goes first: "morf", the most relevant features, or "lerf", the least relevant."""
    per_step: Count | None = None
    """Features removed per step; None leaves it to `steps`, or takes one."""
    steps: Count | None = None
    """Steps of equal size; None leaves it to `per_step`."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "pixel_flipping"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the response fall fast when features are removed by relevance?"
    assumes: ClassVar[str] = "inputs with removed features are still like those the model was trained on"
    misleads: ClassVar[str] = "when the fill itself looks like a class, or masking is out of distribution"
    paper: ClassVar[str] = "Bach et al. 2015; GEF eq. 25"
    ranks_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_steps(self.steps, self.per_step)

    @property
    def better(self) -> Direction:
        return Direction.LOWER if self.order == "morf" else Direction.HIGHER

    def path(self, task: Task) -> RankPath:
        """The nested sets it removes and how their responses add up."""
        counts = step_counts(task, self.steps, self.per_step)
        weights = trapezoid(removed_share(task, counts))
        return RankPath(counts, weights, self.order == "morf", self.response, self.fill)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        first = explanation.descending_ranks if self.order == "morf" else explanation.ranks
        counts = step_counts(task, self.steps, self.per_step)
        rule, share = RankThreshold(first, counts), removed_share(task, counts)
        responses = self.responses(task, rule, context)
        return Outcome(
            flipping_area(responses, share),
            curve=Curve(share.mean(0), responses, "share of features removed", self.response),
        )
