"""What the localisation metrics share: the object's features, and what a mask cannot be asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.functional import has_spread
from veridical.metrics.base import Metric, Outcome
from veridical.metrics.blocks import in_blocks
from veridical.values.explanation import Explanation
from veridical.values.task import Task

Judge = Callable[..., Tensor]


@dataclass(frozen=True)
class LocalisationMetric(Metric):
    """Base of metrics that compare a map with the object masks of its task.

    An empty mask has nothing to be found: NaN and a flag, never a hit. A mask over every feature is flagged,
    since any map finds it.
    """

    category: ClassVar[str] = "localisation"
    needs: ClassVar[frozenset[str]] = frozenset({"masks"})


def object_of(task: Task, explanation: Explanation) -> tuple[Tensor, dict[str, Tensor]]:
    """The object as a truth a feature (N, V), among features that exist, and its flags."""
    assert task.masks is not None
    valid = explanation.valid
    masks = task.masks if valid is None else task.masks & valid
    size = masks.sum(-1)
    count = masks.shape[-1] if valid is None else valid.sum(-1)
    flags = {"the object mask is empty": size == 0, "the object mask covers every feature": size == count}
    return masks, flags


def judged(task: Task, explanation: Explanation, judge: Judge, fault: str, *reads: Tensor) -> Outcome:
    """`judge(*reads, masks, valid)` in blocks; its NaN means `fault`, and an empty mask is NaN too."""
    masks, flags = object_of(task, explanation)
    scores = in_blocks(judge, *reads, masks, explanation.valid)
    empty = flags["the object mask is empty"]
    flags[fault] = scores.isnan() & ~empty
    return Outcome(torch.where(empty, torch.nan, scores), flags)


def judged_by_rank(task: Task, explanation: Explanation, judge: Judge) -> Outcome:
    """`judge(order, masks, valid)`; NaN where the map has no spread, since it ranks nothing."""
    outcome = judged(task, explanation, judge, NO_RANKING, explanation.order)
    counts = feature_counts(explanation.order, explanation.valid)
    # the first and the last of the ranking have the extreme values: no need to look at the others
    ends = torch.stack([torch.zeros_like(counts), counts - 1], -1)
    extremes = explanation.values.gather(-1, explanation.order.gather(-1, ends))
    flat = ~has_spread(extremes)
    flags = {**outcome.flags, NO_RANKING: flat & ~outcome.flags["the object mask is empty"]}
    return Outcome(torch.where(flat, torch.nan, outcome.values), flags)


NO_RANKING = "the map has no spread: it ranks nothing"
NOTHING_POSITIVE = "the map is nowhere positive"


def share_of_last(order: Tensor, masks: Tensor, valid: Tensor | None, size: Tensor) -> Tensor:
    """Of the `size` (N,) features that `order` ranks highest, the share that belongs to the object."""
    count = feature_counts(order, valid)
    place = torch.arange(order.shape[-1], device=order.device)
    top = (place >= (count - size)[:, None]) & (place < count[:, None])
    return (masks.gather(-1, order) & top).sum(-1) / size.double()


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
