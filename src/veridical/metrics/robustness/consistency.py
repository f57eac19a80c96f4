"""Consistency: do inputs with the same explanation get the same prediction?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.functional._rows import in_blocks
from veridical.metrics import Context, Count, Direction, Explainer, ExplainerMetric, Outcome, Task, register
from veridical.metrics.re_explaining import explained_beside, why_no_references


def explanation_codes(values: Tensor, top: int) -> Tensor:
    """The `top` features of largest |e| with their signs, as sorted integers (N, top).

    Ties go to the feature that comes first.
    """
    chosen = torch.argsort(values.abs(), dim=-1, descending=True, stable=True)[:, :top]
    sign = values.gather(-1, chosen).sign().long()
    return sign.add_(chosen, alpha=3).add_(1).sort(-1).values


def agreement_among_matches(codes: Tensor, classes: Tensor, other_codes: Tensor, others: Tensor) -> Tensor:
    """(N, 2): of the others with a sample's code, the share with its class; and how many they are."""

    def agreement(mine: Tensor, own: Tensor) -> Tensor:
        match = (mine[:, None] == other_codes[None]).all(-1)
        count = match.sum(-1, dtype=torch.float64)
        agree = (match & (own[:, None] == others[None])).sum(-1)
        return torch.stack([agree / count, count], -1)  # 0 / 0 is NaN, as it should be

    return in_blocks(agreement, codes, classes, width=len(others) * codes.shape[-1])


@register
@dataclass(frozen=True)
class Consistency(ExplainerMetric):
    """Of the reference rows with the same explanation, the share with the same predicted class.

    The explanation of a row is taken as the set of its `top` features by |e|, with their signs, for the
    row's predicted class. Reference rows are explained beside the samples, so a sample's score does not
    depend on which others are scored with it. NaN where no row matches.
    """

    top: Count = 3
    """Features that stand for an explanation, those of largest |e|."""
    reference_rows: Count = 1000
    """Rows of `train`, from the first on, that are explained at most."""
    name: ClassVar[str] = "consistency"
    category: ClassVar[str] = "robustness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Do inputs with the same explanation get the same prediction?"
    assumes: ClassVar[str] = "two maps whose top features agree say the same"
    misleads: ClassVar[str] = (
        "a map that betrays nothing but the class scores 1; on images hardly two maps share their top "
        "features and most samples have no score"
    )
    paper: ClassVar[str] = "Dasgupta et al. 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer", "train"})

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or why_no_references(task)

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        beside = explained_beside(task, explainer, self.reference_rows, context)
        codes = explanation_codes(beside.maps, min(self.top, beside.maps.shape[-1]))
        mine, theirs = codes[: len(task)], codes[len(task) :]
        found = agreement_among_matches(mine, beside.own, theirs, beside.others)
        lonely = found[:, 1] == 0
        missing = beside.missing[: len(task)]
        flags = {"no reference row has the same explanation": lonely & ~missing, "no explanation": missing}
        values = found[:, 0].masked_fill(missing, torch.nan)
        return Outcome(values, flags, details={"matching rows": found[:, 1]})
