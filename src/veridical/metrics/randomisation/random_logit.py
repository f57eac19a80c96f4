"""Random logit: does the map change when another output is explained?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.metrics import Count, Direction, Explainer, ExplainerMetric, Key, Outcome, Task, register
from veridical.metrics.randomisation._common import Similarity, comparable, compare, why_not_similar
from veridical.metrics.re_explaining import explained_variants, explaining, stacked
from veridical.models.context import Context


def other_targets(task: Task, key: Key, draws: int) -> Tensor:
    """Outputs other than the explained one (N, draws): a keyed permutation of the others, so all distinct."""
    ranks = keyed.permutation(key, task.draw_ids, 0, task.n_outputs - 1)[:, :draws]
    return ranks + (ranks >= task.targets[:, None])


def _for_each(task: Task, targets: Tensor, which: range) -> Task:
    """The samples once for some columns of targets (N, K), one copy of all behind the other.

    Without the check of `task.with_targets`, which would wait for a GPU: these are outputs of the model.
    """
    if which == range(1):
        return task
    some = targets[:, which.start : which.stop]
    outputs = task.outputs.repeat(len(which), 1)
    return stacked(task, len(which)).changed(targets=some.T.flatten(), outputs=outputs)


@register
@dataclass(frozen=True)
class RandomLogit(ExplainerMetric):
    """corr(e_c, e_c'), the similarity of the map with that of another output c' drawn at random.

    Spearman by default (MetaQuantus eq. 21; Sixt et al. take SSIM); mean over `draws` different outputs.
    """

    draws: Count = 1
    """Other outputs per sample, over which the score is averaged."""
    similarity: Similarity = "spearman"
    """How two maps are compared: "spearman", "pearson" or, for images, "ssim"."""
    absolute: bool = False
    """Whether absolute values of the maps are compared."""
    name: ClassVar[str] = "random_logit"
    category: ClassVar[str] = "randomisation"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the map change when another output is explained?"
    assumes: ClassVar[str] = "different outputs have different reasons"
    misleads: ClassVar[str] = "noise passes; outputs that truly share their reasons fail"
    paper: ClassVar[str] = "Sixt et al. 2020; MetaQuantus eq. 21"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer"})

    @property
    def inversion_invariant(self) -> bool:
        """Both maps inverted, the correlation of their ranks is the same."""
        return self.similarity == "spearman" and not self.absolute

    def inapplicable_reason(self, task: Task) -> str | None:
        if task.n_outputs <= self.draws:
            return f"it explains {self.draws} other outputs and the model has {task.n_outputs} in all"
        return super().inapplicable_reason(task) or why_not_similar(self.similarity, task)

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        others = other_targets(task, context.key / "outputs", self.draws)
        targets = torch.cat([task.targets[:, None], others], 1)
        rows: list[Tensor] = []
        with explaining(explainer, context, task) as explain:
            for which, _, values in explained_variants(
                explain, explainer, task, self.draws, partial(_for_each, task, targets), context.key
            ):
                maps = comparable(self.similarity, values, task.space, self.absolute)
                if not which.start:
                    missing, mine, maps = explain.missing[: len(task)], maps[0], maps[1:]
                if len(maps):
                    rows.append(compare(self.similarity, mine, maps, task.space))
        values = (torch.cat(rows) if len(rows) > 1 else rows[0]).T.mean(-1)
        flags = {"no explanation": missing, "a map has no spread": values.isnan() & ~missing}
        return Outcome(values, flags, details={"other outputs": others})
