"""Sufficiency: do samples with like explanations get the same prediction?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.explanation import Explanation
from veridical.metrics.base import Metric, Outcome, register
from veridical.metrics.faithfulness.masks import existing_values
from veridical.rng import Key
from veridical.scores import Direction
from veridical.task import Task


def shared_prediction(near: Tensor, predictions: Tensor, own: Tensor) -> Tensor:
    """Of the neighbours of each sample (n, N), the share that has its prediction; NaN without neighbours."""
    same = predictions[None] == own[:, None]
    return (same & near).sum(-1) / near.sum(-1).double()


@register
@dataclass(frozen=True)
class Sufficiency(Metric):
    """The share of samples with like maps that the model predicts alike (Dasgupta et al., local sufficiency).

    P(f(x') = f(x) | e(x') near e(x)), over the other samples x' of the task: the `neighbours` with the
    smallest cosine distance between maps, or with `radius` all within that distance. It is a property of
    the set: a sample's value depends on which others stand beside it, though never on their order or on how
    the set is cut into batches. It asks the model nothing beyond its predictions.
    """

    neighbours: int = 5
    radius: float | None = None
    name: ClassVar[str] = "sufficiency"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Do samples with like explanations get the same prediction?"
    assumes: ClassVar[str] = "the task holds several samples a class, and their maps can be compared"
    misleads: ClassVar[str] = "on small or one-class sets; a map that merely encodes the class is perfect"
    paper: ClassVar[str] = "Dasgupta et al. 2022"

    def __post_init__(self) -> None:
        if self.neighbours < 1 or (self.radius is not None and not 0 <= self.radius <= 2):
            raise InputError(
                f"sufficiency needs neighbours >= 1 and a cosine radius in [0, 2], "
                f"got {self.neighbours} and {self.radius}"
            )

    def why_not(self, task: Task) -> str | None:
        if task.head == "regression":
            return "it compares predicted classes, and a regression has none"
        return super().why_not(task)

    def evaluate(self, task: Task, explanation: Explanation, key: Key) -> Outcome:
        maps = existing_values(explanation)
        length = maps.square().sum(-1, keepdim=True).sqrt()
        empty = length[:, 0] == 0
        unit = maps / torch.where(length == 0, 1.0, length)
        predictions = task.predictions
        # equal distances fall back to the ids, so that the order of the samples does not matter
        by_id = task.ids.argsort()
        unit_by_id, empty_by_id = unit[by_id], empty[by_id]
        values = []
        few = max(1, 2**22 // max(1, len(task)))
        for at in range(0, len(task), few):
            part = slice(at, at + few)
            distance = ((1 - unit[part] @ unit_by_id.T) * 1e9).round() / 1e9
            barred = (task.ids[part, None] == task.ids[by_id][None]) | empty_by_id[None]
            near = self._near(distance.masked_fill(barred, torch.inf))
            values.append(shared_prediction(near, predictions[by_id], predictions[part]))
        lonely = torch.isnan(torch.cat(values))
        return Outcome(
            torch.cat(values).masked_fill(empty, torch.nan),
            flags={"no neighbour": lonely & ~empty, "map is zero": empty},
        )

    def _near(self, distance: Tensor) -> Tensor:
        """Which samples count as neighbours (n, N); an infinite distance never does."""
        if self.radius is not None:
            return distance <= self.radius
        order = distance.argsort(dim=-1, stable=True)[:, : self.neighbours]
        near = torch.zeros_like(distance, dtype=torch.bool).scatter_(-1, order, True)
        return near & torch.isfinite(distance)
