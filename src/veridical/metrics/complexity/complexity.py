"""Complexity: the entropy of the map's shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veridical.functional import entropy
from veridical.functional._rows import in_blocks
from veridical.metrics import Context, Direction, Explanation, Metric, Outcome, Task, register


@register
@dataclass(frozen=True)
class Complexity(Metric):
    """-sum_i p_i ln p_i with p_i = |e_i| / sum |e|, in nats (MetaQuantus eq. 23).

    0 when one feature carries the map, ln D when all share it evenly.
    """

    name: ClassVar[str] = "complexity"
    category: ClassVar[str] = "complexity"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Over how many features is the map spread?"
    assumes: ClassVar[str] = "a short explanation is a good one"
    misleads: ClassVar[str] = "always, as a measure of truth: it never runs the model"
    paper: ClassVar[str] = "Bhatt et al. 2020; MetaQuantus eq. 23"
    permutation_invariant: ClassVar[bool] = True

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        values = in_blocks(entropy, explanation.values, explanation.valid)
        return Outcome(values, flags={"the map is all zeros": values.isnan()})
