"""Pointing game: is the most relevant feature on the object?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.metrics.base import Outcome, register
from veridical.metrics.localisation.objects import LocalisationMetric, feature_counts, judged_by_rank
from veridical.random.keyed import Key
from veridical.values.explanation import Explanation
from veridical.values.scores import Direction
from veridical.values.task import Task


def points_at(order: Tensor, masks: Tensor, valid: Tensor | None) -> Tensor:
    """1 where the feature ranked highest belongs to the object, else 0."""
    last = (feature_counts(order, valid) - 1)[:, None]
    return masks.gather(-1, order.gather(-1, last))[:, 0].double()


@register
@dataclass(frozen=True)
class PointingGame(LocalisationMetric):
    """1 if argmax_i e_i lies on the object, else 0 (MetaQuantus eq. 24); ties by the explanation's order."""

    name: ClassVar[str] = "pointing_game"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Is the most relevant feature on the object?"
    assumes: ClassVar[str] = "the model looks at the object, and not at what surrounds it"
    misleads: ClassVar[str] = (
        "large objects are hit by chance; a model that uses context is blamed on its map"
    )
    paper: ClassVar[str] = "Zhang et al. 2018; MetaQuantus eq. 24"
    ranks_only: ClassVar[bool] = True

    def evaluate(self, task: Task, explanation: Explanation, key: Key) -> Outcome:
        return judged_by_rank(task, explanation, points_at)
