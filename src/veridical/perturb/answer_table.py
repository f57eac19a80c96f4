"""Answers that are kept by a number of what was asked, sorted, so that many are found at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

KEPT_BYTES = 2**28
"""Memory that the answers of one table may take, 256 MiB; beyond it what is there is let go."""


@dataclass(eq=False)
class AnswerTable:
    """Answers (K, ...) sorted by their numbers (K,)."""

    held: tuple[Tensor, Tensor] | None = None
    """The numbers and the answers; None while there are none."""

    def find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Where the answers lie, and whether they are there at all."""
        if self.held is None:
            return torch.zeros_like(keys), torch.zeros_like(keys, dtype=torch.bool)
        known = self.held[0]
        place = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
        return place, known[place] == keys

    def has_room(self, more: int) -> bool:
        """Whether so many further answers may be kept."""
        if self.held is None:
            return True
        kept = self.held[1]
        return (len(kept) + more) * kept[0].numel() * kept.itemsize <= KEPT_BYTES

    def add(self, keys: Tensor, answers: Tensor) -> None:
        """Keep new answers beside those that are there."""
        if self.held is not None:
            keys, answers = torch.cat([self.held[0], keys]), torch.cat([self.held[1], answers])
        order = keys.argsort()
        self.held = keys[order], answers[order]
