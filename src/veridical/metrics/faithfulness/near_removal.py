"""Near removal: move features towards near neighbours in the order of the map and watch the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.metrics import Count, Metric, Outcome, PartOf, register, step_counts
from veridical.metrics.types import Context, Curve, Direction, Explanation, Response, Task
from veridical.perturb.near_rows import NEIGHBOURS, STEP, near_responses, why_no_near_rows
from veridical.perturb.rules import RankThreshold, removed_share


def change_curve(own: Tensor, responses: Tensor) -> Tensor:
    """How far responses (N, K, M) lie from the own one (N, 1), after each of M steps: means over K (N, M)."""
    return (responses - own[..., None]).abs().mean(1)


@register
@dataclass(frozen=True)
class NearRemoval(Metric):
    """How far the response moves while features go a step towards near neighbours, most relevant first.

    The mean over neighbours k and steps m of |y(x with its first n_m features moved towards neighbour k) -
    y(x)|. Features are ranked by the size of their relevance. Rows stay near the data, so that what a model
    answers to inputs that do not occur has no part in the score: the pixel flipping of models that follow
    another rule off their data.
    """

    neighbours: Count = NEIGHBOURS
    """How many of the nearest reference rows features move towards."""
    step: PartOf = STEP
    """How far features move, as a share of the way."""
    steps: Count | None = None
    """Steps of equal size along the ranking; None moves one feature at a time."""
    response: Response = "logit"
    """The scale on which responses are read: "probability" or "logit"."""
    name: ClassVar[str] = "near_removal"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does the response move soon when relevant features go towards near neighbours?"
    assumes: ClassVar[str] = "reference rows near the inputs, and features that a small move can show"
    misleads: ClassVar[str] = (
        "for features that neighbours share, and models that answer in steps, such as trees"
    )
    paper: ClassVar[str] = "veridical; after Bach et al. 2015"
    needs: ClassVar[frozenset[str]] = frozenset({"train"})
    averages_ties: ClassVar[bool | None] = True

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or why_no_near_rows(task)

    def evaluate_with_ties(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        # features of equal size tie whatever their signs
        sizes = explanation.with_values(explanation.values.abs())
        return super().evaluate_with_ties(task, sizes, context)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        counts = step_counts(task, self.steps)
        rule = RankThreshold(explanation.descending_ranks, counts)
        moved = rule.removed(slice(0, len(task)), slice(0, rule.count))
        own, responses = near_responses(task, moved, self.response, self.step, self.neighbours)
        curve = change_curve(own, responses)
        return Outcome(
            curve.mean(-1),
            curve=Curve(
                removed_share(task, counts)[:, 1:].mean(0),
                curve,
                "share of features moved",
                "change of response",
            ),
        )
