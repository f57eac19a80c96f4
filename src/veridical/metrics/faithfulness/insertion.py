"""Insertion: the area under the response as the most relevant features come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from veridical.functional import area_under_curve
from veridical.metrics import Count, Outcome, RankingMetric, register
from veridical.metrics.faithfulness._common import RankPath, trapezoid
from veridical.metrics.types import Context, Curve, Direction, Explanation, Fill, Response, Task
from veridical.perturb.fills import Blur
from veridical.perturb.rules import RankThreshold, put_back, removed_share, step_counts


@register
@dataclass(frozen=True)
class Insertion(RankingMetric):
    """The area under the response over the share of features put back, most relevant first, in even steps.

    It begins with an input of which nothing is left and ends with the input itself.
    """

    steps: Count = 50
    """Steps of equal share."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What the input starts from; None is a blurred copy (sigma 5) of images, else the task's own fill."""
    name: ClassVar[str] = "insertion"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "How soon does the response recover when the most relevant is put back?"
    assumes: ClassVar[str] = "the emptied input holds no evidence for the explained output"
    misleads: ClassVar[str] = "when the blurred input is already recognised: every map then scores high"
    paper: ClassVar[str] = "Petsiuk et al. 2018"
    ranks_only: ClassVar[bool] = True

    def fill_on(self, task: Task) -> Fill:
        return self.fill or (Blur(5.0) if task.modality == "image" else task.fill)

    def path(self, task: Task) -> RankPath:
        """The nested sets it removes and how their responses add up."""
        gone = put_back(task, step_counts(task, self.steps, None)).flip(-1)
        weights = trapezoid(removed_share(task, gone))
        return RankPath(gone, weights, False, self.response, self.fill_on(task))

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        kept = step_counts(task, self.steps, None)
        # keeping the k most relevant is removing all the less relevant ones
        rule = RankThreshold(explanation.ranks, put_back(task, kept))
        removed = self.responses(task, rule, context)
        responses = torch.cat([removed[:, 1:], removed[:, :1]], -1)
        share = removed_share(task, kept)
        return Outcome(
            area_under_curve(responses, share),
            curve=Curve(share.mean(0), responses, "share of features put back", self.response),
        )
