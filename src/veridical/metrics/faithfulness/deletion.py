"""Deletion: the area under the probability as the most relevant features are deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veridical.metrics import Count, Outcome, RankingMetric, register
from veridical.metrics.faithfulness._common import RankPath
from veridical.metrics.faithfulness.pixel_flipping import PixelFlipping
from veridical.metrics.types import Context, Direction, Explanation, Fill, Response, Task


@register
@dataclass(frozen=True)
class Deletion(RankingMetric):
    """The area under the response over the share of features deleted, most relevant first, in even steps.

    It is pixel flipping in `steps` steps of equal share; the area lies on [0, 1] whatever their number.
    """

    steps: Count = 50
    """Steps of equal share."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "deletion"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "How soon does the response collapse when the most relevant is deleted?"
    assumes: ClassVar[str] = "inputs with deleted features are still like those the model was trained on"
    misleads: ClassVar[str] = "on maps of isolated pixels: speckled deletion breaks any classifier"
    paper: ClassVar[str] = "Petsiuk et al. 2018"
    ranks_only: ClassVar[bool] = True

    @property
    def _flipping(self) -> PixelFlipping:
        return PixelFlipping(steps=self.steps, response=self.response, fill=self.fill)

    def path(self, task: Task) -> RankPath:
        """The nested sets it removes and how their responses add up."""
        return self._flipping.path(task)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        return self._flipping.evaluate(task, explanation, context)
