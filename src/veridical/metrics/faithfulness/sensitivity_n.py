"""Sensitivity-n: over subsets of every size, does summed relevance predict the fall of the response?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional import pearson
from veridical.functional._rows import numbers_on
from veridical.metrics import MANY, Between, Metric, Outcome, Within, register
from veridical.metrics.faithfulness._common import existing_values, responses_and_sums, sized_subsets
from veridical.metrics.types import Context, Curve, Direction, Explanation, Fill, Response, Task
from veridical.perturb.subset_table import FEW


@register
@dataclass(frozen=True)
class SensitivityN(Metric):
    """The mean over sizes n of the Pearson correlation, over subsets of n features, of relevance and fall.

    For each n, subsets S of n features are drawn, each removed from the untouched input, and sum_{i in S} e_i
    is correlated with y(x) - y(x without S); the curve keeps the correlation at each n. A linear model with
    exact attributions scores 1. Of up to 12 features all subsets are taken, each once, where there are no
    more than `draws`.
    """

    draws: Annotated[int, Within(3, MANY)] = 50
    """Random subsets drawn per sample and size."""
    shares: tuple[Between, ...] = (0.01, 0.03, 0.1, 0.3, 0.8)
    """Sizes of the subsets, as shares of the features."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "sensitivity_n"
    version: ClassVar[int] = 3
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does summed relevance predict the fall at every subset size?"
    assumes: ClassVar[str] = "relevance adds up over features, and masked inputs are like training inputs"
    misleads: ClassVar[str] = "at large sizes, where all random subsets destroy the input alike"
    paper: ClassVar[str] = "Ancona et al. 2018"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(self.shares))
        if not self.shares:
            raise InputError("give at least one share, such as shares=(0.1, 0.2)")

    def sizes(self, task: Task) -> Tensor:
        """Features in a subset, for each sample and size (N, sizes): at least one, never all.

        One row where all samples have as many features.
        """
        counts = task.space.counts(1 if task.space.valid is None else len(task))[:, None]
        share = numbers_on(counts.device, self.shares)
        return torch.minimum((counts * share).round().long().clamp(min=1), (counts - 1).clamp(min=1))

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        sizes = self.sizes(task) if task.space.valid is not None else self.sizes(task)[0]
        rule, there = sized_subsets(task, context.key, self.draws, sizes)
        responses, sums = responses_and_sums(self, task, rule, existing_values(explanation), context)
        by_size = (len(task), self.draws, len(self.shares))
        falls = (responses[:, :1] - responses[:, 1:]).view(by_size).mT
        relevance = sums.view(by_size).mT
        correlations = pearson(relevance, falls, where=None if there is None else there.view(by_size).mT)
        # of finite numbers a correlation is NaN where one side has no spread, and nowhere else
        flat = correlations.isnan()
        none = flat.all(-1)
        counted = correlations
        if there is not None:
            # shares of few features come to the same number of them: each size counts once
            few = task.space.counts(len(task))[:, None] <= FEW
            again = torch.zeros_like(flat)
            again[:, 1:] = sizes.expand(len(task), -1).diff(dim=-1) == 0
            counted = correlations.masked_fill(again & few, torch.nan)
        return Outcome(
            counted.nanmean(-1),
            flags={"no spread: all subsets alike": none, "no spread at some sizes": flat.any(-1) & ~none},
            curve=Curve(
                torch.tensor(self.shares, dtype=torch.float64), correlations, "share removed", "correlation"
            ),
        )
