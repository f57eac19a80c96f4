"""Local Lipschitz estimate: how fast does the map move with the input?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.explainers.input_noise import movable, touched_norm
from veridical.metrics import Context, Direction, Explainer, Outcome, Task, register
from veridical.metrics.robustness._common import (
    NeighbourMetric,
    distance,
    nan_where_any,
    worst,
)


@register
@dataclass(frozen=True)
class LocalLipschitz(NeighbourMetric):
    """max over draws u of ‖e(x) - e(x + u)‖ / ‖u‖ (Euclidean), maps divided by their root mean square.

    ‖u‖ is the distance the input really moved, after rounding to the model's precision.
    """

    name: ClassVar[str] = "local_lipschitz"
    category: ClassVar[str] = "robustness"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "How fast does the map move, at worst, with the input?"
    assumes: ClassVar[str] = "explanations of neighbours differ no more than the neighbours do"
    misleads: ClassVar[str] = "a few draws in many dimensions are a lower bound of the true constant"
    paper: ClassVar[str] = "Alvarez-Melis and Jaakkola 2018; MetaQuantus eq. 19"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer"})

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        start = movable(task)

        def slope(near: Task, before: Tensor, after: Tensor) -> Tensor:
            way = near.inputs.unflatten(0, (-1, len(start))) - start.inputs
            moved = touched_norm(start, way)
            return distance(before, after) / moved.masked_fill_(moved == 0, torch.nan)

        _, table, flags = self.pairs(start, explainer, context, slope)
        flags["no draw moved the input"] = table.isnan().all(-1) & ~flags["no explanation"]
        return Outcome(nan_where_any(worst(table), flags), flags, details={"draws": table})
