"""Relevance rank accuracy: are the features ranked highest those of the object?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.metrics import Direction, register
from veridical.metrics.localisation._common import LocalisationRanking


@register
@dataclass(frozen=True)
class RelevanceRankAccuracy(LocalisationRanking):
    """|{|s| features ranked highest} ∩ s| / |s| for the object s (MetaQuantus eq. 27, corrected).

    As many features are counted as the object has; ties averaged.
    """

    name: ClassVar[str] = "relevance_rank_accuracy"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Are the features ranked highest those of the object?"
    assumes: ClassVar[str] = "every feature of the object matters more than any other"
    misleads: ClassVar[str] = "a box around an object holds background that a good map leaves out"
    paper: ClassVar[str] = "Arras et al. 2022; MetaQuantus eq. 27"

    def looked_at(self, masks: Tensor, counts: Tensor) -> Tensor:
        return masks.sum(-1)
