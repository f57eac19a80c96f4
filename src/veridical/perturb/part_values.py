"""The fill of several inputs explained jointly: one value for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.core.allowed import Index, Value
from veridical.core.key import Key
from veridical.core.settings import revivable
from veridical.perturb.fills import Fill


@revivable
@dataclass(frozen=True)
class PartValues(Fill):
    """One value for each part of a joint input."""

    widths: tuple[Index, ...] = ()
    """How many elements each part has."""
    values: tuple[Value, ...] = ()
    """What removed elements of each part become."""
    name: ClassVar[str] = "part_values"
    drawn: ClassVar[bool] = False

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        each = zip(self.widths, self.values, strict=True)
        return torch.cat([x.new_full((width,), value) for width, value in each])[None, None]
