"""Monotonicity correlation (Nguyen): does |relevance| rank features as the change they cause does?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.functional import spearman
from veridical.metrics import Count, Outcome, RankingMetric, check_steps, register, step_counts
from veridical.metrics.faithfulness._common import RankBands, band_responses
from veridical.metrics.types import Context, Direction, Explanation, Fill, Key, Response, Task
from veridical.perturb.fills import Marginal, UniformNoise
from veridical.values.ties import TieOrders


@register
@dataclass(frozen=True)
class MonotonicityCorrelation(RankingMetric):
    """Spearman correlation over groups G of |sum_{i in G} e_i| with E[(y(x) - y(x with G redrawn))^2].

    Groups are neighbours in the ranking. (The paper's division by y(x)^2 is the same for all groups of a
    sample and leaves a rank correlation as it is.)
    """

    draws: Count = 5
    """Values that each group takes in turn; a fill of fixed value is evaluated once."""
    per_step: Count | None = None
    """Features per group; None leaves it to `steps`, or takes one."""
    steps: Count | None = None
    """Groups of equal size; None leaves it to `per_step`."""
    response: Response = "probability"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """Where values come from; None takes reference rows, without any uniform noise over the input's range,
    and for text and for units that are switched off the task's fill."""
    name: ClassVar[str] = "monotonicity_correlation"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does the size of relevance rank features by the change they cause?"
    assumes: ClassVar[str] = "features act one by one; the sign of relevance does not matter"
    misleads: ClassVar[str] = "on redundant inputs, where single features change nothing but noise"
    paper: ClassVar[str] = "Nguyen and Martinez 2020"

    def __post_init__(self) -> None:
        check_steps(self.steps, self.per_step)

    def fill_on(self, task: Task) -> Fill:
        if self.fill is not None or task.modality in ("text", "units"):
            return self.fill or task.fill
        return UniformNoise() if task.train is None else Marginal(1)

    def tie_orders(self, task: Task, explanation: Explanation, key: Key) -> TieOrders:
        # a group of one feature is the same wherever it stands
        grouped = self.steps is not None or (self.per_step or 1) > 1
        return super().tie_orders(task, explanation, key).where(grouped)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        counts = step_counts(task, self.steps, self.per_step)
        rule = RankBands(explanation.descending_ranks, counts)
        change = self._change(task, rule, context)
        relevance = rule.sums(explanation.values).abs()
        exists = rule.taken(len(task))
        values = spearman(relevance, change, where=exists)
        # of finite numbers a correlation is NaN where one side has no spread, and nowhere else
        return Outcome(values, flags={"no spread: all groups alike": values.isnan()})

    def _change(self, task: Task, rule: RankBands, context: Context) -> Tensor:
        """The mean squared change of the response for every group (N, M)."""
        fill = self.fill_on(task)
        redraws = isinstance(fill, UniformNoise | Marginal)
        total: Tensor | None = None
        for draw in range(self.draws if redraws else 1):
            responses = band_responses(self, task, rule, context.with_key(context.key / draw))
            squared = (responses[:, :1] - responses[:, 1:]).square()
            total = squared if total is None else total + squared
        assert total is not None
        return total
