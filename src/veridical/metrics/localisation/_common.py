"""What the localisation metrics share: the object's features, and masks that say nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from veridical.errors import NotApplicableError
from veridical.functional._rows import in_blocks
from veridical.metrics import Context, Explanation, Metric, Outcome, Task
from veridical.metrics.base import TIED_PAIRS, Ties
from veridical.metrics.tie_orders import TIES_DECIDE

Scorer = Callable[..., Tensor]


@dataclass(frozen=True)
class LocalisationMetric(Metric):
    """Base of metrics that compare a map with the object masks of its task.

    An empty mask has nothing to be found: NaN and a flag, never a hit. A mask over every feature is flagged,
    since any map finds it.
    """

    category: ClassVar[str] = "localisation"
    needs: ClassVar[frozenset[str]] = frozenset({"masks"})


def object_of(task: Task, explanation: Explanation) -> tuple[Tensor, dict[str, Tensor]]:
    """The object as a boolean mask of features (N, V), among features that exist, and its flags."""
    assert task.masks is not None
    valid = explanation.valid
    masks = task.masks if valid is None else task.masks & valid
    size = masks.sum(-1)
    count = masks.shape[-1] if valid is None else valid.sum(-1)
    flags = {"the object mask is empty": size == 0, "the object mask covers every feature": size == count}
    return masks, flags


def scored(task: Task, explanation: Explanation, scorer: Scorer, fault: str, *reads: Tensor) -> Outcome:
    """`scorer(*reads, masks, valid)` in blocks; its NaN means `fault`, and an empty mask is NaN too."""
    masks, flags = object_of(task, explanation)
    scores = in_blocks(scorer, *reads, masks, explanation.valid)
    empty = flags["the object mask is empty"]
    flags[fault] = scores.isnan() & ~empty
    return Outcome(torch.where(empty, torch.nan, scores), flags)


NO_RANKING = "the map has no spread: it ranks nothing"
NOTHING_POSITIVE = "the map is nowhere positive"


@dataclass(frozen=True)
class LocalisationRanking(LocalisationMetric):
    """The share of the features ranked highest that belong to the object; a subclass says how many.

    Tied features share their places, so that a score is the mean over all rankings that agree with the map.
    `ties="stable"` breaks ties by position, as published programs do. NaN where a map has no spread.
    """

    ties: Ties = field(default="average", kw_only=True)  # type: ignore[misc]  # here it is a setting
    """How tied features are ranked: averaged over the rankings that agree, or by position."""
    version: ClassVar[int] = 2
    ranks_only: ClassVar[bool] = True
    averages_ties: ClassVar[bool | None] = False  # the mean over all rankings has a closed form

    def looked_at(self, masks: Tensor, counts: Tensor) -> Tensor:
        """How many of each sample's `counts` features are counted (N,)."""
        raise NotApplicableError(f"metric '{self.name}' does not say how many features it counts")

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        order, tied = explanation.order, explanation.tied
        tied = tied if self.ties == "average" else torch.zeros_like(tied)

        def share(order: Tensor, tied: Tensor, masks: Tensor, valid: Tensor | None) -> Tensor:
            return share_of_last(
                order, tied, masks, valid, self.looked_at(masks, feature_counts(order, valid))
            )

        masks, flags = object_of(task, explanation)
        scores, split = in_blocks(share, order, tied, masks, explanation.valid).unbind(-1)
        empty, flat = flags["the object mask is empty"], ~explanation.spread
        flags |= {NO_RANKING: flat & ~empty, TIES_DECIDE: (split > 0) & ~flat & ~empty}
        values = scores.masked_fill(empty | flat, torch.nan)
        return Outcome(values, flags, details={TIED_PAIRS: explanation.tied_pairs})


def share_of_last(order: Tensor, tied: Tensor, masks: Tensor, valid: Tensor | None, size: Tensor) -> Tensor:
    """Of the `size` (N,) features that `order` ranks highest, the share that belongs to the object.

    (N, 2): its mean over the rankings that agree, and how far the best of them lies above the worst.
    """
    count = feature_counts(order, valid)
    place = torch.arange(order.shape[-1], device=order.device)
    top = (place >= (count - size)[:, None]) & (place < count[:, None])
    run = (~tied).cumsum(-1) - 1

    def of_run(there: Tensor) -> Tensor:
        return torch.zeros_like(run).scatter_add_(-1, run, there.long())

    tops, inside, many = of_run(top), of_run(masks.gather(-1, order)), of_run(torch.ones_like(top))
    mean = (tops * inside / many.clamp(min=1).double()).sum(-1)
    best, worst = torch.minimum(tops, inside), (tops + inside - many).clamp(min=0)
    return torch.stack([mean, (best - worst).sum(-1).double()], -1) / size[:, None]


def feature_counts(order: Tensor, valid: Tensor | None) -> Tensor:
    """How many features each row has (N,)."""
    if valid is None:
        return torch.full((len(order),), order.shape[-1], device=order.device)
    return valid.sum(-1)


def positive_share_inside(values: Tensor, masks: Tensor, valid: Tensor | None) -> Tensor:
    """sum of max(e, 0) inside the object / sum of max(e, 0), in [0, 1]; NaN where nothing is positive."""
    positive = values.double().clamp(min=0.0)
    if valid is not None:
        positive = torch.where(valid, positive, 0.0)
    # over the largest, so that very small maps do not underflow
    positive = positive / positive.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    total = positive.sum(-1)
    inside = torch.where(masks, positive, 0.0).sum(-1)
    return (inside / torch.where(total == 0, torch.nan, total)).clamp(max=1.0)
