"""Which samples a method gives a constant map, noticed as it explains them, whoever asked it to.

Metrics that judge methods explain again and again; the first map of a sample is that of its untouched input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.functional import has_spread

if TYPE_CHECKING:
    from veridical.values.space import Space
    from veridical.values.task import Task


class FirstMaps:
    """What was seen first of each of a task's samples."""

    def __init__(self, task: Task) -> None:
        self._ids = task.ids
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._complete = False

    def notice(self, task: Task, space: Space, values: Tensor) -> None:
        """Remember which of these maps (n, V) are constant; NaN says that a sample has none."""
        if self._complete:
            return
        constant = ~has_spread(values, space.valid) & ~values.isnan().any(-1)
        self._seen.append((task.ids.to(self._ids.device), constant.to(self._ids.device)))
        self._complete = len(values) >= len(self._ids)

    @property
    def constant(self) -> Tensor:
        """(N,): samples whose first map tells no feature from another."""
        if not self._seen:
            return torch.zeros_like(self._ids, dtype=torch.bool)
        ids, constant = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
        # sorted stably, the first of equal ids is the one that was seen first; nothing waits for a GPU
        known, order = ids.sort(stable=True)
        place = torch.searchsorted(known, self._ids).clamp(max=len(known) - 1)
        return constant[order[place]] & (known[place] == self._ids)
