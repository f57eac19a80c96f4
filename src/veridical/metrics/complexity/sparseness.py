"""Sparseness: the Gini index of the absolute map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veridical.functional import gini
from veridical.functional._rows import in_blocks
from veridical.metrics import Context, Direction, Explanation, Metric, Outcome, Task, register


@register
@dataclass(frozen=True)
class Sparseness(Metric):
    """The Gini index of |e|: 0 when all features are alike, near 1 when one carries the map.

    With |e| sorted ascending, G = sum_i (2i - D - 1) |e|_i / (D sum |e|) (MetaQuantus eq. 22, corrected).
    """

    name: ClassVar[str] = "sparseness"
    category: ClassVar[str] = "complexity"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Is the map carried by few features?"
    assumes: ClassVar[str] = "a short explanation is a good one"
    misleads: ClassVar[str] = "always, as a measure of truth: it never runs the model"
    paper: ClassVar[str] = "Chalasani et al. 2020; MetaQuantus eq. 22"
    permutation_invariant: ClassVar[bool] = True

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        values = in_blocks(gini, explanation.values, explanation.valid)
        return Outcome(values, flags={"the map is all zeros": values.isnan()})
