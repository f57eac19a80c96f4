"""Monotonicity (Arya): does every feature put back, least relevant first, keep the response from falling?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.functional import has_spread
from veridical.metrics import Count, Outcome, RankingMetric, register
from veridical.metrics.types import Context, Curve, Direction, Explanation, Fill, Response, Task
from veridical.perturb.rules import RankThreshold, check_steps, put_back, removed_share, step_counts


def rising_share(responses: Tensor, taken: Tensor) -> Tensor:
    """The share of the steps `taken` (N, M) on which responses (N, M + 1) do not fall."""
    rises = responses.diff(dim=-1) >= 0
    return (rises & taken).sum(-1) / taken.sum(-1).double()


@register
@dataclass(frozen=True)
class Monotonicity(RankingMetric):
    """Whether the response never falls while features are put back, the least relevant first: 1 or 0.

    It begins with nothing left of the input: 1 if y_{k+1} >= y_k for every step k, else 0. The share of steps
    that do not fall still separates maps on large inputs (it is always kept as the detail "rising").
    Undefined where the response never moves.
    """

    strict: bool = True
    """Whether the score is 1 or 0; otherwise it is the share of steps that do not fall."""
    per_step: Count | None = None
    """Features put back per step; None leaves it to `steps`, or takes one."""
    steps: Count | None = None
    """Steps of equal size; None leaves it to `per_step`."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "monotonicity"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does the response rise with every feature put back, least relevant first?"
    assumes: ClassVar[str] = "every feature speaks for the explained output, or not at all"
    misleads: ClassVar[str] = "with many features one fall among hundreds of steps decides"
    paper: ClassVar[str] = "Arya et al. 2019 (after Luss et al. 2019)"
    ranks_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_steps(self.steps, self.per_step)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        kept = step_counts(task, self.steps, self.per_step)
        # keeping the k least relevant is removing all the more relevant ones
        rule = RankThreshold(explanation.descending_ranks, put_back(task, kept))
        removed = self.responses(task, rule, context)
        responses = torch.cat([removed[:, 1:], removed[:, :1]], -1)
        share = removed_share(task, kept)
        rising = rising_share(responses, share.diff(dim=-1) > 0)
        flat = ~has_spread(responses)
        values = rising if not self.strict else (rising == 1).double()
        return Outcome(
            values.masked_fill(flat, torch.nan),
            flags={"the response never moves": flat},
            curve=Curve(share.mean(0), responses, "share of features put back", self.response),
            details={"rising": rising},
        )
