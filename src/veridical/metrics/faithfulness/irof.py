"""IROF: remove superpixels, most relevant first, and measure the area over the response curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from veridical.core.facts import fact
from veridical.functional import area_under_curve
from veridical.metrics import MANY, Outcome, Within, register
from veridical.metrics.faithfulness._common import RegionMetric
from veridical.metrics.types import Context, Curve, Direction, Explanation, Fill, Response, Task
from veridical.perturb.fills import Mean
from veridical.values.regions import Regions, each_feature, superpixels


@register
@dataclass(frozen=True)
class Irof(RegionMetric):
    """1 minus the area under y_k / y_0 over the share of segments removed (iterative removal of features).

    Segments are ordered by their mean relevance. A task whose features are superpixels or patches brings its
    own segments; pixels are cut into them by clustering, once per task.
    """

    segments: Annotated[int, Within(2, MANY)] = 64
    """Segments that an image of pixels is cut into, about."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed segments become; None is the mean of the reference rows, or the task's fill without
    any."""
    name: ClassVar[str] = "irof"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "How soon does the response fall when whole segments are removed?"
    assumes: ClassVar[str] = "segments hold what belongs together, and masked inputs are like training inputs"
    misleads: ClassVar[str] = "where segments cut through objects; scores of two segmentations differ"
    paper: ClassVar[str] = "Rieger and Hansen 2020"
    modalities: ClassVar[frozenset[str]] = frozenset({"image"})

    def regions_of(self, task: Task) -> Regions:
        """The segments of every image, computed once per task."""
        if task.space.kind != "pixel" or task.space.valid is not None:
            return each_feature(task.space)
        return _superpixels(task, self.segments)

    def fill_on(self, task: Task) -> Fill:
        return self.fill or (task.fill if task.train is None else Mean())

    def relevance_of(self, task: Task, explanation: Explanation) -> Tensor:
        values = explanation.values
        if task.space.kind in ("superpixel", "patch"):
            # a segment's value is the sum over its pixels; the order is by their mean
            values = values.double() / _pixels(task).clamp(min=1)
        return self.regions_of(task).relevance(values, mean=True)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        most = self.regions_of(task).most
        responses, order = self.without_regions(task, explanation, context, most)
        share = order.share(most)
        start = responses[:, :1]
        nothing = start[:, 0] == 0
        relative = responses / torch.where(start == 0, torch.nan, start)
        return Outcome(
            1 - area_under_curve(relative, share),
            flags={
                "the response to the untouched input is zero": nothing,
            },
            curve=Curve(share.mean(0), relative, "share of segments removed", f"relative {self.response}"),
        )


@fact
def _superpixels(task: Task, count: int) -> Regions:
    return superpixels(task.inputs, count)


def _pixels(task: Task) -> Tensor:
    """How many pixels each feature covers (1 or N, V)."""
    count = len(task) if task.space.per_sample else 1
    return task.space.pool(torch.ones(count, *task.space.input_shape, device=task.device).double())
