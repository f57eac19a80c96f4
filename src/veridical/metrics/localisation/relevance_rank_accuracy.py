"""Relevance rank accuracy: are the features ranked highest those of the object?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.metrics.base import Outcome, register
from veridical.metrics.localisation.objects import LocalisationMetric, judged_by_rank, share_of_last
from veridical.random.keyed import Key
from veridical.values.explanation import Explanation
from veridical.values.scores import Direction
from veridical.values.task import Task


def rank_accuracy(order: Tensor, masks: Tensor, valid: Tensor | None) -> Tensor:
    """Of as many top-ranked features as the object has, the share that belongs to it."""
    return share_of_last(order, masks, valid, masks.sum(-1))


@register
@dataclass(frozen=True)
class RelevanceRankAccuracy(LocalisationMetric):
    """|{|s| features ranked highest} ∩ s| / |s| for the object s (MetaQuantus eq. 27, corrected).

    As many features are looked at as the object has; ties by the explanation's order.
    """

    name: ClassVar[str] = "relevance_rank_accuracy"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Are the features ranked highest those of the object?"
    assumes: ClassVar[str] = "every feature of the object matters more than any other"
    misleads: ClassVar[str] = "a box around an object holds background that a good map leaves out"
    paper: ClassVar[str] = "Arras et al. 2022; MetaQuantus eq. 27"
    ranks_only: ClassVar[bool] = True

    def evaluate(self, task: Task, explanation: Explanation, key: Key) -> Outcome:
        return judged_by_rank(task, explanation, rank_accuracy)
