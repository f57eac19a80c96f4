"""ROAD: remove features, fill them in from their surroundings, and see if the prediction holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from veridical.errors import InputError
from veridical.functional._rows import numbers_on
from veridical.metrics import Between, Outcome, RankingMetric, RankThreshold, probe, register
from veridical.metrics.types import Context, Curve, Direction, Explanation, Fill, Task
from veridical.perturb.fills import NoisyLinear


@register
@dataclass(frozen=True)
class Road(RankingMetric):
    """The share of removal levels at which the explained class is still predicted (remove and debias).

    At each of `shares` the most relevant features are replaced by noisy linear imputation: every removed
    pixel the weighted mean of its neighbours, plus a little noise, so that the mask itself shows the model
    nothing. Averaged over samples, the curve is ROAD's accuracy at each level. With `order="lerf"` higher is
    better.
    """

    order: Literal["morf", "lerf"] = "morf"
    """What goes first: "morf", the most relevant features, or "lerf", the least relevant."""
    shares: tuple[Between, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    """Shares of the features that are removed, one level for each."""
    response: Literal["prediction", "probability", "logit"] = "prediction"
    """What is read: whether the "prediction" holds, its "probability" or its "logit"."""
    fill: Fill = NoisyLinear()  # noqa: RUF009 (frozen)
    """What removed features become."""
    name: ClassVar[str] = "road"
    version: ClassVar[int] = 3
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the prediction change when the relevant is removed without a trace?"
    assumes: ClassVar[str] = "a pixel's surroundings predict it, so that filling it in removes what it shows"
    misleads: ClassVar[str] = "on thin or scattered maps, whose pixels the surroundings give away again"
    paper: ClassVar[str] = "Rong et al. 2022"
    modalities: ClassVar[frozenset[str]] = frozenset({"image"})
    ranks_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(self.shares))
        if not self.shares:
            raise InputError("give at least one share, such as shares=(0.1, 0.2)")

    @property
    def better(self) -> Direction:
        return Direction.LOWER if self.order == "morf" else Direction.HIGHER

    def inapplicable_reason(self, task: Task) -> str | None:
        if task.head == "regression" and self.response == "prediction":
            return "a regression predicts no class; use response='logit'"
        return super().inapplicable_reason(task)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        share = numbers_on(task.device, self.shares)
        # samples that all have as many features share their counts
        counts = task.space.counts(1 if task.space.valid is None else len(task))[:, None]
        gone = (counts * share).round().long()
        first = explanation.descending_ranks if self.order == "morf" else explanation.ranks
        rule = RankThreshold(first, gone[0] if task.space.valid is None else gone)
        if self.response == "prediction":
            outputs = probe(
                task,
                rule,
                response="probability",
                fill=self.fill,
                key=context.key,
                all_outputs=True,
                memo=context.memo,
            )
            kept = still_predicted(task, outputs)
        else:
            kept = probe(
                task, rule, response=self.response, fill=self.fill, key=context.key, memo=context.memo
            )
        label = "still predicted" if self.response == "prediction" else self.response
        return Outcome(
            kept.mean(-1),
            curve=Curve(share.clone(), kept, "share of features removed", label),
        )


def still_predicted(task: Task, probabilities: Tensor) -> Tensor:
    """1 where the explained class is the predicted one (N, M); among labels, where its sign holds."""
    target = task.targets[:, None, None].expand(-1, probabilities.shape[1], 1)
    own = probabilities.gather(-1, target)[..., 0]
    if task.head == "multilabel":
        clean = task.probabilities(task.outputs).gather(1, task.targets[:, None])
        return ((own > 0.5) == (clean > 0.5)).double()
    return (own >= probabilities.amax(-1)).double()
