"""Faithfulness correlation: does the relevance of a random subset predict the fall of the response?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from veridical.functional import pearson
from veridical.metrics import MANY, Metric, Outcome, Positive, Within, register
from veridical.metrics.faithfulness._common import existing_values, responses_and_sums, sized_subsets
from veridical.metrics.types import Context, Direction, Explanation, Fill, Response, Task


def subset_correlation(relevance: Tensor, falls: Tensor, where: Tensor | None = None) -> Tensor:
    """Pearson correlation over subsets of summed relevance and fall of the response (GEF eq. 24)."""
    return pearson(relevance, falls, where=where)


@register
@dataclass(frozen=True)
class FaithfulnessCorrelation(Metric):
    """Correlation over random subsets S of sum_{i in S} e_i with y(x) - y(x without S).

    Where up to 12 features have no more than `runs` subsets, all are taken, each once.
    """

    runs: Annotated[int, Within(3, MANY)] = 100
    """Random subsets drawn per sample."""
    subset_size: Positive = 0.2
    """Features per subset, or a share of them when below 1."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "faithfulness_correlation"
    version: ClassVar[int] = 3
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does summed relevance predict how far the response falls?"
    assumes: ClassVar[str] = "relevance adds up over features, and masked inputs are like training inputs"
    misleads: ClassVar[str] = "on models with strong interactions; with few runs it is noisy"
    paper: ClassVar[str] = "Bhatt et al. 2020; GEF eq. 24"

    def sizes(self, task: Task) -> Tensor:
        """Features in a subset, for each sample (N,): at least one, and not all."""
        return _sizes(task.space.counts(len(task)), self.subset_size)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        sizes: Tensor | int = self.sizes(task)[:, None]
        if task.space.valid is None:
            sizes = int(_sizes(torch.tensor([task.space.n_features]), self.subset_size))
        rule, there = sized_subsets(task, context.key, self.runs, sizes)
        responses, sums = responses_and_sums(self, task, rule, existing_values(explanation), context)
        falls = responses[:, :1] - responses[:, 1:]
        values = subset_correlation(sums, falls, there)
        # of finite numbers a correlation is NaN where one side has no spread, and nowhere else
        return Outcome(values, flags={"no spread: all subsets alike": values.isnan()})


def _sizes(counts: Tensor, share: float) -> Tensor:
    wanted = counts * share if share < 1 else counts.clamp(max=float(int(share)))
    return torch.minimum(wanted.round().long().clamp(min=1), (counts - 1).clamp(min=1))
