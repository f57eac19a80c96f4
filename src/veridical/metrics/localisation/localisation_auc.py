"""Localisation AUC: does relevance tell the object's features from the others?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.explanation import Explanation
from veridical.functional import average_ranks
from veridical.metrics.base import Outcome, register
from veridical.metrics.localisation.objects import LocalisationMetric, judged
from veridical.rng import Key
from veridical.scores import Direction
from veridical.task import Task


def ranking_area(values: Tensor, masks: Tensor, valid: Tensor | None) -> Tensor:
    """P(e inside > e outside) + P(equal) / 2, from ranks; NaN where inside or outside is empty."""
    ranks = average_ranks(values, where=valid)
    inside = masks.sum(-1).double()
    count = (
        masks.new_full((len(masks),), masks.shape[-1], dtype=torch.long) if valid is None else valid.sum(-1)
    )
    wins = torch.where(masks, ranks, 0.0).sum(-1) - inside * (inside + 1) / 2
    pairs = inside * (count - inside)
    return wins / torch.where(pairs == 0, torch.nan, pairs)


@register
@dataclass(frozen=True)
class LocalisationAuc(LocalisationMetric):
    """The area under the ROC curve of the map as a detector of the object's features.

    P(e_i > e_j) + P(e_i = e_j) / 2 for i on the object and j off it. Tied features share their rank: a map
    that gives them the same relevance tells nothing about which comes first, so a constant map scores 0.5.
    """

    name: ClassVar[str] = "localisation_auc"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does relevance tell the object's features from the others?"
    assumes: ClassVar[str] = "every feature of the object matters more than any other"
    misleads: ClassVar[str] = "where the object is small, thousands of false alarms hardly lower it"
    paper: ClassVar[str] = "Fawcett 2006"
    ranks_only: ClassVar[bool] = True

    def evaluate(self, task: Task, explanation: Explanation, key: Key) -> Outcome:
        return judged(task, explanation, ranking_area, "no feature lies outside the object", ranked=False)
