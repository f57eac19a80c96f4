"""Top-k intersection: how many of the most relevant features lie on the object?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.metrics import Context, Direction, Explanation, Outcome, Positive, Task, register
from veridical.metrics.localisation._common import LocalisationRanking


@register
@dataclass(frozen=True)
class TopKIntersection(LocalisationRanking):
    """|{k features ranked highest} ∩ object| / k (MetaQuantus eq. 26); ties averaged."""

    k: Positive = 0.1
    """Features that are counted, or a share of them when below 1; at least one, at most all."""
    name: ClassVar[str] = "top_k_intersection"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "How many of the most relevant features lie on the object?"
    assumes: ClassVar[str] = "the model looks at the object, and not at what surrounds it"
    misleads: ClassVar[str] = "where k exceeds the object no map can reach 1; large objects are met by chance"
    paper: ClassVar[str] = "Theiner et al. 2022; MetaQuantus eq. 26"

    def __post_init__(self) -> None:
        if self.k >= 1 and self.k != int(self.k):
            raise InputError(f"k is a share below 1 or a whole number of features, got {self.k}")

    def sizes(self, counts: Tensor) -> Tensor:
        """How many of each sample's `counts` features are counted (N,)."""
        share = (counts * self.k + 0.5).floor().long()
        wanted = share if self.k < 1 else torch.full_like(counts, int(self.k))
        return torch.minimum(wanted.clamp(min=1), counts)

    def looked_at(self, masks: Tensor, counts: Tensor) -> Tensor:
        return self.sizes(counts)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        outcome, counts = super().evaluate(task, explanation, context), task.space.counts(len(task))
        return replace(outcome, flags={**outcome.flags, "k is all features": self.sizes(counts) == counts})
