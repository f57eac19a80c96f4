"""Effective complexity: how many features have any relevance to speak of?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.functional import rms_normalise
from veridical.functional._rows import in_blocks
from veridical.metrics import Context, Direction, Explanation, Metric, NotNegative, Outcome, Task, register


def count_above(values: Tensor, valid: Tensor | None, threshold: float, normalise: bool) -> Tensor:
    """How many |e| of each row exceed the threshold, over valid features; NaN for a map of zeros."""
    size = rms_normalise(values, where=valid) if normalise else values
    if valid is not None:
        size = torch.where(valid, size, 0.0)
    count = (size.abs() > threshold).sum(-1).double()
    return torch.where((size == 0).all(-1), torch.nan, count)


@register
@dataclass(frozen=True)
class EffectiveComplexity(Metric):
    """The number of features with |e| > threshold, after division by the map's root mean square."""

    threshold: NotNegative = 1e-5
    """Absolute relevance above which a feature counts."""
    normalise: bool = True
    """Whether maps are divided by their root mean square first; if not, as in common programs, the count
    depends on a map's scale."""
    name: ClassVar[str] = "effective_complexity"
    category: ClassVar[str] = "complexity"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "How many features have any relevance to speak of?"
    assumes: ClassVar[str] = "relevance below the threshold says nothing"
    misleads: ClassVar[str] = "always, as a measure of truth: it never runs the model; the threshold decides"
    paper: ClassVar[str] = "Nguyen and Martinez 2020"
    permutation_invariant: ClassVar[bool] = True

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        values = in_blocks(
            lambda e, valid: count_above(e, valid, self.threshold, self.normalise),
            explanation.values,
            explanation.valid,
        )
        return Outcome(values, flags={"the map is all zeros": values.isnan()})
