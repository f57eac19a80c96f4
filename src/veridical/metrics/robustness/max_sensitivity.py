"""Max-sensitivity: how far can the map move when the input moves a little?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

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


@dataclass(frozen=True)
class Sensitivity(NeighbourMetric):
    """Distances ‖e(x) - e(x + u)‖ over draws, relative to the input's norm, the map's, or nothing."""

    relative_to: Literal["input", "nothing", "explanation"] = "input"
    """What distances are divided by: the norm of the "input" (MetaQuantus eq. 18), "nothing" (Yeh et al.), or
    the norm of the "explanation", as some programs do."""
    category: ClassVar[str] = "robustness"
    direction: ClassVar[Direction] = Direction.LOWER
    needs: ClassVar[frozenset[str]] = frozenset({"explainer"})

    def distances(
        self, task: Task, explainer: Explainer, context: Context
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The relative distance of every draw (N, draws), NaN where it has no meaning, and the flags."""
        clean, table, flags = self.pairs(task, explainer, context, lambda _, a, b: distance(a, b))
        if self.relative_to == "nothing":
            return table, flags
        if self.relative_to == "input":
            start = movable(task)
            scale = touched_norm(start, start.inputs)
            flags["the input is all zeros"] = scale == 0
        else:
            scale = clean.norm(dim=-1)
        return table / scale.masked_fill_(scale == 0, torch.nan)[:, None], flags


@register
@dataclass(frozen=True)
class MaxSensitivity(Sensitivity):
    """max over draws u of ‖e(x) - e(x + u)‖ / ‖x‖ (Euclidean), maps divided by their root mean square.

    The explanation at x + u is for the output explained at x.
    """

    name: ClassVar[str] = "max_sensitivity"
    summary: ClassVar[str] = "How far does the map move at worst when the input moves a little?"
    assumes: ClassVar[str] = "a small change of the input should not change its explanation"
    misleads: ClassVar[str] = (
        "it rewards maps that ignore input and model (a constant map scores a perfect 0), and more draws "
        "can only raise it; compare scores of one radius and number of draws"
    )
    paper: ClassVar[str] = "Yeh et al. 2019; MetaQuantus eq. 18"

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        table, flags = self.distances(task, explainer, context)
        return Outcome(nan_where_any(worst(table), flags), flags, details={"draws": table})
