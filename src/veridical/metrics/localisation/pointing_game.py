"""Pointing game: is the most relevant feature on the object?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.metrics import Direction, register
from veridical.metrics.localisation._common import LocalisationRanking


@register
@dataclass(frozen=True)
class PointingGame(LocalisationRanking):
    """1 if argmax_i e_i lies on the object, else 0 (MetaQuantus eq. 24); ties averaged."""

    name: ClassVar[str] = "pointing_game"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Is the most relevant feature on the object?"
    assumes: ClassVar[str] = "the model looks at the object, and not at what surrounds it"
    misleads: ClassVar[str] = (
        "large objects are hit by chance; a model that uses context is blamed on its map"
    )
    paper: ClassVar[str] = "Zhang et al. 2018; MetaQuantus eq. 24"

    def looked_at(self, masks: Tensor, counts: Tensor) -> Tensor:
        return torch.ones_like(counts)
