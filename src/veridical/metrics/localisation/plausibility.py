"""Plausibility: how far does a map agree with what people marked, as masks or rationales?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.metrics import Context, Count, Direction, Explanation, Outcome, Task, register
from veridical.metrics.localisation._common import LocalisationMetric, object_of, scored


@dataclass(frozen=True)
class _Overlap(LocalisationMetric):
    k: Count | None = None
    """How many of the features ranked highest are compared with the mask; None takes as many as it has."""
    direction: ClassVar[Direction] = Direction.HIGHER
    assumes: ClassVar[str] = "people marked what the model uses, and all of it"
    misleads: ClassVar[str] = (
        "a right map of a model that looks elsewhere scores low: people judge, not the model"
    )
    ranks_only: ClassVar[bool] = True

    def _overlap(self, shared: Tensor, chosen: Tensor, marked: Tensor) -> Tensor:
        raise NotImplementedError

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        masks, flags = object_of(task, explanation)
        marked, counts = masks.sum(-1), task.space.counts(len(task))
        chosen = marked if self.k is None else counts.clamp(max=self.k)
        shared = (masks & (explanation.descending_ranks < chosen[:, None])).sum(-1)
        values = self._overlap(shared.double(), chosen.double(), marked.double())
        return Outcome(values.masked_fill(flags["the object mask is empty"], torch.nan), flags)


@register
@dataclass(frozen=True)
class Iou(_Overlap):
    """|top ∩ s| / |top ∪ s| for the k features ranked highest and the marked features s."""

    name: ClassVar[str] = "iou"
    summary: ClassVar[str] = "How much do the features ranked highest and the marked ones overlap?"
    paper: ClassVar[str] = "DeYoung et al. 2020; Attanasio et al. 2023 (ferret)"

    def _overlap(self, shared: Tensor, chosen: Tensor, marked: Tensor) -> Tensor:
        return shared / (chosen + marked - shared)


@register
@dataclass(frozen=True)
class TokenF1(_Overlap):
    """The harmonic mean of |top ∩ s| / |top| and |top ∩ s| / |s| for the k features ranked highest."""

    name: ClassVar[str] = "token_f1"
    summary: ClassVar[str] = "Are the features ranked highest the marked ones, all of them and no others?"
    paper: ClassVar[str] = "DeYoung et al. 2020; Attanasio et al. 2023 (ferret)"

    def _overlap(self, shared: Tensor, chosen: Tensor, marked: Tensor) -> Tensor:
        return 2 * shared / (chosen + marked)


def precision_recall_area(values: Tensor, masks: Tensor, valid: Tensor | None) -> Tensor:
    """The area below precision over recall, by trapezoids between the map's different values (N,)."""
    from sklearn.metrics import auc, precision_recall_curve

    areas = []
    for row, (map_, mask) in enumerate(zip(values.double().cpu(), masks.cpu(), strict=True)):
        there = slice(None) if valid is None else valid[row].cpu()
        if not bool(mask.any()):
            areas.append(torch.nan)
            continue
        precision, recall, _ = precision_recall_curve(mask[there], map_[there])
        areas.append(float(auc(recall, precision)))
    return torch.tensor(areas, dtype=torch.float64, device=values.device)


@register
@dataclass(frozen=True)
class Auprc(LocalisationMetric):
    """The area under the precision-recall curve of the map as a detector of the marked features.

    Thresholds are the map's different values, so tied features come together.
    """

    name: ClassVar[str] = "auprc"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "How precise is the map at every share of the marked features that it finds?"
    assumes: ClassVar[str] = _Overlap.assumes
    misleads: ClassVar[str] = (
        "its chance level is the share of marked features, which differs between samples"
    )
    paper: ClassVar[str] = "DeYoung et al. 2020; Attanasio et al. 2023 (ferret)"
    ranks_only: ClassVar[bool] = True
    averages_ties: ClassVar[bool | None] = False  # tied features pass one threshold

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        return scored(task, explanation, precision_recall_area, "the area is undefined", explanation.values)
