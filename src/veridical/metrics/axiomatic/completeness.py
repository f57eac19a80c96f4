"""Completeness: does the relevance add up to what the model's output owes to the input?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.functional._rows import in_blocks
from veridical.metrics import Metric, Outcome, register
from veridical.metrics.types import Context, Direction, Explanation, Fill, Response, Task
from veridical.perturb.rules import Given


def total_relevance(values: Tensor, valid: Tensor | None) -> Tensor:
    """The sum of each map over the features that exist, in float64."""
    if valid is not None:
        values = values.masked_fill(~valid, 0.0)
    return values.sum(-1, dtype=torch.float64)


@register
@dataclass(frozen=True)
class Completeness(Metric):
    """|sum_i e_i - (y_c(x) - y_c(x without all features))|, on logits: a gap, not a test for equality.

    The baseline is the fill put in the place of every feature; choose the explainer's own (integrated
    gradients from zero: fill="zero").
    """

    response: Response = "logit"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """The baseline put in the place of every feature; None is the task's own fill."""
    name: ClassVar[str] = "completeness"
    category: ClassVar[str] = "axiomatic"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the relevance add up to the change of the model's output?"
    assumes: ClassVar[str] = "the map is meant to add up, in the units of the logits"
    misleads: ClassVar[str] = "only the sum counts, so the right sum in the wrong places is perfect"
    paper: ClassVar[str] = "Sundararajan et al. 2017"
    permutation_invariant: ClassVar[bool] = True

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        every = torch.ones(1, task.space.n_features, dtype=torch.bool, device=task.device)
        evaluated = self.responses(task, Given(every), context)
        owed = evaluated[:, 0] - evaluated[:, 1]
        total = in_blocks(total_relevance, explanation.values, explanation.valid)
        return Outcome((total - owed).abs(), details={"sum of relevance": total, "change of answer": owed})
