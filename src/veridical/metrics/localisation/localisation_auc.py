"""Localisation AUC: does relevance separate the object's features from the others?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.metrics import Context, Direction, Explanation, Outcome, Task, register
from veridical.metrics.localisation._common import LocalisationMetric, feature_counts, scored


def ranking_area(order: Tensor, values: Tensor, masks: Tensor, valid: Tensor | None) -> Tensor:
    """P(e inside > e outside) + P(equal) / 2; NaN where inside or outside is empty.

    The ranking is there already, so nothing is sorted: along it, an inside feature beats the outside ones
    before its run of equal values, and half of those within the run.
    """
    ascending, inside = values.gather(-1, order), masks.gather(-1, order)
    place = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    outside = ~inside & (place < feature_counts(order, valid)[:, None])
    seen = torch.nn.functional.pad(outside.cumsum(-1), (1, 0))  # outside features before each place
    begins = torch.ones_like(inside)
    begins[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    first = torch.where(begins, place, 0).cummax(-1).values
    ends = torch.ones_like(inside)
    ends[:, :-1] = begins[:, 1:]
    last = torch.where(ends, place, order.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    beaten = (seen.gather(-1, first) + seen.gather(-1, last + 1)).double() / 2
    pairs = inside.sum(-1).double() * outside.sum(-1)
    return torch.where(inside, beaten, 0.0).sum(-1) / torch.where(pairs == 0, torch.nan, pairs)


@register
@dataclass(frozen=True)
class LocalisationAuc(LocalisationMetric):
    """The area under the ROC curve of the map as a detector of the object's features.

    P(e_i > e_j) + P(e_i = e_j) / 2 for i on the object and j off it. Tied features share their rank: a map
    that gives them the same relevance does not say which comes first, so a constant map scores 0.5.
    """

    name: ClassVar[str] = "localisation_auc"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does relevance separate the object's features from the others?"
    assumes: ClassVar[str] = "every feature of the object matters more than any other"
    misleads: ClassVar[str] = "where the object is small, thousands of false alarms hardly lower it"
    paper: ClassVar[str] = "Fawcett 2006"
    ranks_only: ClassVar[bool] = True
    averages_ties: ClassVar[bool | None] = False  # the mean over all rankings has a closed form

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        fault = "no feature lies outside the object"
        return scored(task, explanation, ranking_area, fault, explanation.order, explanation.values)
