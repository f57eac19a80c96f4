"""Attribution localisation: the inside-total relevance ratio, weighted by size where wanted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from veridical.metrics import Context, Direction, Explanation, Outcome, Task, register
from veridical.metrics.localisation._common import (
    NOTHING_POSITIVE,
    LocalisationMetric,
    object_of,
    positive_share_inside,
    scored,
)


@register
@dataclass(frozen=True)
class AttributionLocalisation(LocalisationMetric):
    """mu = R_in / R_total of the positive relevance; with `weighted`, mu_w = mu * V / |object|.

    Unweighted it equals `relevance_mass_accuracy`, which is here defined on the positive part too. The
    weighted ratio says how much denser relevance is on the object than over all: 1 for a uniform map, and
    up to V / |object|.
    """

    weighted: bool = False
    """Whether the ratio is divided by the object's share of the features."""
    name: ClassVar[str] = "attribution_localisation"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "How much of the positive relevance lies on the object, for its size?"
    assumes: ClassVar[str] = "the model looks at the object, and not at what surrounds it"
    misleads: ClassVar[str] = "weighted scores of small objects are large and noisy"
    paper: ClassVar[str] = "Kohlbrenner et al. 2020"

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        outcome = scored(task, explanation, positive_share_inside, NOTHING_POSITIVE, explanation.values)
        if not self.weighted:
            return outcome
        masks, _ = object_of(task, explanation)
        density = task.space.counts(len(task)) / masks.sum(-1).clamp(min=1).double()
        return replace(outcome, values=outcome.values * density)
