"""Sufficiency: do inputs with like explanations get the same prediction?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from veridical.functional._rows import SMALLEST
from veridical.metrics import Count, ExplainerMetric, Outcome, Within, register
from veridical.metrics.re_explaining import explained_beside, why_no_references
from veridical.metrics.types import Context, Direction, Explainer, Task


def shared_prediction(near: Tensor, predictions: Tensor, own: Tensor) -> Tensor:
    """Of the neighbours of each sample (n, R), the share that has its prediction; NaN without neighbours.

    `predictions` is (R,), or (n, R) where every sample has rows of its own.
    """
    same = predictions == own[:, None]
    return (same & near).sum(-1) / near.sum(-1, dtype=torch.float64)


@register
@dataclass(frozen=True)
class Sufficiency(ExplainerMetric):
    """Of the reference rows with the most similar maps, the share with the same prediction.

    P(f(x') = f(x) | e(x') near e(x)): the probability that what the explanation says suffices for the
    prediction (Dasgupta et al., local sufficiency, with likeness by the cosine of maps). Reference rows are
    explained for their own predictions, so that a sample's score does not depend on which others are scored
    with it.
    """

    neighbours: Count = 5
    """Reference rows of smallest cosine distance that count as near."""
    radius: Annotated[float, Within(0, 2)] | None = None
    """Cosine distance up to which rows count as near; None takes `neighbours` instead."""
    reference_rows: Count = 1000
    """Rows of `train`, from the first on, that are explained at most."""
    name: ClassVar[str] = "sufficiency"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Do inputs with like explanations get the same prediction?"
    assumes: ClassVar[str] = "reference rows of every class, and maps that can be compared place by place"
    misleads: ClassVar[str] = "where one class prevails; a map that merely betrays the class is perfect"
    paper: ClassVar[str] = "Dasgupta et al. 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer", "train"})

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or why_no_references(task)

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        beside = explained_beside(task, explainer, self.reference_rows, context)
        maps, empty = _directions(beside.maps)
        unusable = beside.missing | empty
        count = len(task)
        mine, theirs, barred = maps[:count], maps[count:], unusable[count:]
        values = []
        few = max(1, 2**22 // len(theirs))
        for at in range(0, count, few):
            part = slice(at, at + few)
            # rounded, so that equal distances tie and fall back to the order of the reference rows
            distance = (1 - mine[part] @ theirs.T).round_(decimals=9)
            near, order = self._near(distance.masked_fill_(barred, torch.inf))
            classes = beside.others if order is None else beside.others[order]
            values.append(shared_prediction(near, classes, beside.own[part]))
        failed, empty, unusable = beside.missing[:count], empty[:count], unusable[:count]
        shares = (torch.cat(values) if len(values) > 1 else values[0]).masked_fill_(unusable, torch.nan)
        lonely = shares.isnan() & ~unusable
        return Outcome(shares, flags={"no neighbour": lonely, "map is zero": empty, "no explanation": failed})

    def _near(self, distance: Tensor) -> tuple[Tensor, Tensor | None]:
        """Which rows are neighbours, an infinite distance never, and which rows these are, if not all."""
        if self.radius is not None:
            return distance <= self.radius, None
        ascending, order = (x[:, : self.neighbours] for x in distance.sort(dim=-1, stable=True))
        return ascending < torch.inf, order


def _directions(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Maps scaled to length 1, and which of them are zero."""
    maps = maps.double()
    length = maps.square().sum(-1, keepdim=True).sqrt_()
    empty = length[:, 0] == 0
    return maps / length.clamp_(min=SMALLEST), empty
