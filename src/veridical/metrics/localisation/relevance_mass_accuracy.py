"""Relevance mass accuracy: how much of the positive relevance lies on the object?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veridical.metrics import Context, Direction, Explanation, Outcome, Task, register
from veridical.metrics.localisation._common import (
    NOTHING_POSITIVE,
    LocalisationMetric,
    positive_share_inside,
    scored,
)


@register
@dataclass(frozen=True)
class RelevanceMassAccuracy(LocalisationMetric):
    """sum over the object of max(e, 0) / sum of max(e, 0), in [0, 1].

    MetaQuantus eq. 25 on the positive part: on signed maps the printed ratio is not bounded by 1, and has no
    meaning where the sum is negative. Score |e| by giving |e|.
    """

    name: ClassVar[str] = "relevance_mass_accuracy"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "How much of the positive relevance lies on the object?"
    assumes: ClassVar[str] = "the model looks at the object, and not at what surrounds it"
    misleads: ClassVar[str] = (
        "relevance against the class is not seen; a uniform map scores the object's share"
    )
    paper: ClassVar[str] = "Arras et al. 2022; MetaQuantus eq. 25"

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        return scored(task, explanation, positive_share_inside, NOTHING_POSITIVE, explanation.values)
