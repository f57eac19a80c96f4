"""What is read in one world after the other, kept until enough of it is there to be measured together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from veridical.functional.devices import at_a_time

CPU_TOGETHER, GPU_TOGETHER = 2**17, 2**22
"""Numbers measured together: on a CPU what its cache holds; a GPU wants more to do at once."""


class Room:
    """Memory that is used again and again."""

    def __init__(self) -> None:
        self._kept: Tensor | None = None

    def of(self, count: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Room for so many tensors like this one; what was in it before is lost."""
        kept = self._kept
        if kept is None or len(kept) < count or kept.shape[1:] != like.shape:
            kept = torch.empty(count, *like.shape, dtype=dtype or like.dtype, device=like.device)
            self._kept = kept
        return kept[:count]


class Pending:
    """Maps or answers that wait to be measured together: what small ones cost is the steps, not the numbers.

    `measure` turns some of them (some, N, V) into one number per world and sample (some, N). Each is copied
    at once: it may be the very weights of its world, which move on.
    """

    def __init__(
        self, room: Room, measure: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None
    ) -> None:
        self._room, self._measure, self._dtype = room, measure, dtype
        self._kept: Tensor | None = None
        self._waiting = 0
        self._found: list[Tensor] = []

    def add(self, values: Tensor) -> None:
        """One more (N, V); when as many as are worth keeping wait, they are measured."""
        if self._kept is None:
            together = at_a_time(values, CPU_TOGETHER, GPU_TOGETHER) // max(1, values.numel())
            self._kept = self._room.of(max(1, together), values, self._dtype)
        self._kept[self._waiting] = values.detach()
        self._waiting += 1
        if self._waiting == len(self._kept):
            self._flush()

    def all(self) -> Tensor:
        """What was measured since the last time, in the order in which it came."""
        self._flush()
        found, self._found = self._found, []
        return found[0] if len(found) == 1 else torch.cat(found)

    def _flush(self) -> None:
        if self._kept is not None and self._waiting:
            self._found.append(self._measure(self._kept[: self._waiting]))
            self._waiting = 0
