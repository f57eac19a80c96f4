"""Faithfulness estimate: does a feature's relevance predict the fall of the response without it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veridical.functional import pearson
from veridical.metrics import Count, Outcome, RankingMetric, check_steps, register, step_counts
from veridical.metrics.faithfulness._common import RankBands, band_responses
from veridical.metrics.types import Context, Direction, Explanation, Fill, Key, Response, Task
from veridical.values.ties import TieOrders


@register
@dataclass(frozen=True)
class FaithfulnessEstimate(RankingMetric):
    """Pearson correlation over groups G of sum_{i in G} e_i with y(x) - y(x without G).

    Features are taken in groups of neighbours in the ranking, each removed alone from the untouched
    input.
    """

    per_step: Count | None = None
    """Features per group; None leaves it to `steps`, or takes one."""
    steps: Count | None = None
    """Groups of equal size; None leaves it to `per_step`."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "faithfulness_estimate"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does relevance predict how far the response falls without a feature?"
    assumes: ClassVar[str] = "features act one by one"
    misleads: ClassVar[str] = "on redundant inputs: no single pixel of many alike moves the response"
    paper: ClassVar[str] = "Alvarez-Melis and Jaakkola 2018"

    def __post_init__(self) -> None:
        check_steps(self.steps, self.per_step)

    def tie_orders(self, task: Task, explanation: Explanation, key: Key) -> TieOrders:
        # a group of one feature is the same wherever it stands
        grouped = self.steps is not None or (self.per_step or 1) > 1
        return super().tie_orders(task, explanation, key).where(grouped)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        counts = step_counts(task, self.steps, self.per_step)
        rule = RankBands(explanation.descending_ranks, counts)
        responses = band_responses(self, task, rule, context)
        falls = responses[:, :1] - responses[:, 1:]
        relevance = rule.sums(explanation.values)
        exists = rule.taken(len(task))
        values = pearson(relevance, falls, where=exists)
        # of finite numbers a correlation is NaN where one side has no spread, and nowhere else
        return Outcome(values, flags={"no spread: all groups alike": values.isnan()})
