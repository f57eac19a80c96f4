"""Random logit: does the map change when another output is explained?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical import rng
from veridical.errors import InputError
from veridical.explainers.base import Explainer
from veridical.metrics.base import ExplainerMetric, Outcome, register
from veridical.metrics.explaining import explaining
from veridical.metrics.randomisation.similarity import (
    Similarity,
    check_similarity,
    comparable,
    compare,
    why_not_similar,
)
from veridical.rng import Key
from veridical.scores import Direction
from veridical.task import Task


def other_targets(task: Task, key: Key, draws: int) -> Tensor:
    """Outputs other than the explained one (N, draws): a keyed permutation of the others, so all distinct."""
    ranks = rng.permutation(key, task.ids, 0, task.n_outputs - 1)[:, :draws]
    return ranks + (ranks >= task.targets[:, None])


def _for_others(task: Task, targets: Tensor) -> Task:
    """`task.with_targets` without its check, which would wait for a GPU: these are outputs of the model."""
    twin = task._derive(_targets=targets)
    twin.__dict__["_cache"]["outputs"] = task.outputs
    return twin


@register
@dataclass(frozen=True)
class RandomLogit(ExplainerMetric):
    """corr(e_c, e_c'), the similarity of the map with that of another output c' drawn at random.

    Spearman by default (MetaQuantus eq. 21; Sixt et al. take SSIM); mean over `draws` different outputs.
    """

    draws: int = 1
    similarity: Similarity = "spearman"
    absolute: bool = False
    name: ClassVar[str] = "random_logit"
    category: ClassVar[str] = "randomisation"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the map change when another output is explained?"
    assumes: ClassVar[str] = "different outputs have different reasons"
    misleads: ClassVar[str] = "noise passes; outputs that truly share their reasons fail"
    paper: ClassVar[str] = "Sixt et al. 2020; MetaQuantus eq. 21"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer"})

    def __post_init__(self) -> None:
        check_similarity(self.similarity)
        if self.draws < 1:
            raise InputError(f"draws must be at least 1, got {self.draws}")

    def why_not(self, task: Task) -> str | None:
        if task.n_outputs <= self.draws:
            return f"it explains {self.draws} other outputs and the model has {task.n_outputs} in all"
        return super().why_not(task) or why_not_similar(self.similarity, task)

    def evaluate(self, task: Task, explainer: Explainer, key: Key) -> Outcome:
        others = other_targets(task, key / "outputs", self.draws)
        columns = []
        with explaining(explainer, task) as explain:
            clean = explain(task, key / "clean")
            mine = comparable(self.similarity, clean, task.space, self.absolute)
            for draw in range(self.draws):
                theirs = explain(_for_others(task, others[:, draw]), key / "explain" / draw)
                theirs = comparable(self.similarity, theirs, task.space, self.absolute)
                columns.append(compare(self.similarity, mine, theirs, task.space))
        table = torch.stack(columns, -1)
        missing = clean.isnan().any(-1)
        flags = {"no explanation": missing, "a map has no spread": table.isnan().any(-1) & ~missing}
        return Outcome(table.mean(-1), flags, details={"other outputs": others})
