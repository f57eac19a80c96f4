"""Region perturbation: how far the response falls, on average, over the first regions removed (AOPC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.metrics import Count, Outcome, register
from veridical.metrics.faithfulness._common import RegionMetric
from veridical.metrics.types import Context, Curve, Direction, Explanation, Fill, Response, Task
from veridical.values.regions import Regions, squares


def area_over_perturbation_curve(falls: Tensor, steps: Tensor) -> Tensor:
    """1 / (L + 1) sum_{k=1..L} (y_0 - y_k): falls (N, M) of which the first `steps` (N,) count."""
    counted = torch.arange(1, falls.shape[-1] + 1, device=falls.device) <= steps[:, None]
    return torch.where(counted, falls, 0.0).sum(-1) / (steps + 1)


@register
@dataclass(frozen=True)
class RegionPerturbation(RegionMetric):
    """The area over the perturbation curve: 1 / (L + 1) sum_{k=1..L} (y_0 - y_k).

    y_k is the response after the k most relevant regions are gone (GEF eq. 26 with its sign corrected).
    Regions are squares of `patch` x `patch` pixels ordered by summed relevance, or the features themselves
    where they are no pixels. With `order="lerf"` the fall should be small.
    """

    order: Literal["morf", "lerf"] = "morf"
    """What goes first: "morf", the most relevant features, or "lerf", the least relevant."""
    patch: Count = 8
    """Side of a region, in pixels."""
    regions: Count = 100
    """Regions that are removed, at most."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "region_perturbation"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "How far does the response fall over the first regions removed?"
    assumes: ClassVar[str] = "relevance adds up over a region, and masked inputs are like training inputs"
    misleads: ClassVar[str] = "when evidence is finer than a region, or signed relevance cancels inside it"
    paper: ClassVar[str] = "Samek et al. 2017; GEF eq. 26, with y_0 - y_k"

    @property
    def better(self) -> Direction:
        return Direction.HIGHER if self.order == "morf" else Direction.LOWER

    def regions_of(self, task: Task) -> Regions:
        return squares(task.space, self.patch)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        # as far as the largest sample goes: evaluating steps that nobody has would be wasted
        most = min(self.regions, self.regions_of(task).most)
        responses, order = self.without_regions(task, explanation, context, most, self.order == "lerf")
        falls = responses[:, :1] - responses
        steps = order.regions.clamp(max=most)
        return Outcome(
            area_over_perturbation_curve(falls[:, 1:], steps),
            curve=Curve(
                torch.arange(most + 1, device=falls.device).double(),
                falls,
                "regions removed",
                f"fall of the {self.response}",
            ),
        )
