"""How a dictionary is trained: its width, what keeps its codes sparse, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.core.allowed import Count, NotNegative, Positive
from veridical.core.settings import Settings
from veridical.errors import InputError


@dataclass(frozen=True)
class Recipe(Settings):
    """What all dictionaries share: Adam on the squared error, atoms of length 1 after every step.

    Atoms that were not active since the last look start anew along what is worst explained, eight times in
    the first half of training (Bricken et al. 2023).
    """

    width: Count = 512
    """Atoms of the dictionary."""
    steps: Count = 2000
    """Steps of training."""
    batch: Count = 512
    """Rows in a step, drawn with replacement."""
    rate: Positive = 1e-3
    """Adam's learning rate at the start; it falls to 0 along a cosine."""
    frozen: Literal["encoder", "decoder"] | None = None
    """Which half stays as it was drawn, which makes a random control of the dictionary."""
    revive: bool = True
    """Whether atoms that are never active start anew; a frozen half forbids it."""
    activation: ClassVar[str] = ""
    """What makes codes of the encoder's answers."""
    active: ClassVar[int | None] = None
    """Atoms that are active, where a number says so."""

    def __post_init__(self) -> None:
        if self.active is not None and self.active > self.width:
            raise InputError(f"{self.active} active atoms of a dictionary that has {self.width}")

    def codes(self, before: Tensor) -> Tensor:
        """Codes (B, atoms) of a batch from the encoder's answers."""
        raise TypeError("a Recipe is ReLU, TopK or BatchTopK")

    def penalty(self, codes: Tensor, dimension: int) -> Tensor | None:
        """What joins the squared error; None for nothing."""
        return None


@dataclass(frozen=True)
class ReLU(Recipe):
    """Codes are what is positive, and an L1 penalty keeps them sparse."""

    name: ClassVar[str] = "relu"
    activation: ClassVar[str] = "relu"
    sparsity: NotNegative = 1e-2
    """Weight of the L1 penalty on codes."""

    def codes(self, before: Tensor) -> Tensor:
        return before.clamp(min=0)

    def penalty(self, codes: Tensor, dimension: int) -> Tensor | None:
        return self.sparsity * codes.sum(-1).mean() / dimension


@dataclass(frozen=True)
class TopK(Recipe):
    """The largest `active` codes of every row stay (Gao et al. 2025)."""

    name: ClassVar[str] = "topk"
    activation: ClassVar[str] = "topk"
    active: Count = 8  # type: ignore[misc]
    """Atoms that are active in a row."""

    def codes(self, before: Tensor) -> Tensor:
        values, kept = self.largest(before)
        return torch.zeros_like(before).scatter(-1, kept, values)

    def largest(self, before: Tensor) -> tuple[Tensor, Tensor]:
        """The codes that stay (B, active), and of which atoms they are."""
        found = before.topk(self.active, -1)
        return found.values.clamp(min=0), found.indices


@dataclass(frozen=True)
class BatchTopK(Recipe):
    """The largest `active` x rows codes of a batch stay (Bussmann et al. 2024).

    The trained dictionary is a JumpReLU: its threshold is the smallest code that stayed, averaged over the
    last quarter of training, so that codes of a row depend on no other row.
    """

    name: ClassVar[str] = "batchtopk"
    activation: ClassVar[str] = "batchtopk"
    active: Count = 8  # type: ignore[misc]
    """Atoms that are active in a row, on average over a batch."""

    def codes(self, before: Tensor) -> Tensor:
        positive = before.clamp(min=0)
        return positive * (positive >= self.least(positive))

    def least(self, positive: Tensor) -> Tensor:
        """The smallest code that stays in this batch."""
        return positive.detach().flatten().topk(self.active * len(positive)).values[-1]
