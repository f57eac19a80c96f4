"""Exact Shapley values: every subset of a few features is asked, and nothing is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import factorial
from typing import ClassVar

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.explainers.base import register
from veridical.explainers.coalitions import SharesOut
from veridical.perturb.probe import probe
from veridical.perturb.rules import AllSubsets
from veridical.perturb.subset_table import FEW, places_of
from veridical.values.task import Task


def shapley_values(answers: Tensor, features: int) -> Tensor:
    """Shapley values (N, D) of answers (N, 2^D), where bit i of a number says that feature i is gone.

    phi_i = sum over sets S without i of |S|! (D - |S| - 1)! / D! (v(S with i) - v(S)).
    """
    code = torch.arange(2**features, device=answers.device)
    gone = torch.stack([(code >> i) & 1 for i in range(features)]).bool()
    kept = features - gone.sum(0)
    weight = [factorial(s) * factorial(features - s - 1) / factorial(features) for s in range(features)]
    table = torch.tensor([*weight, 0.0], dtype=torch.float64, device=answers.device)
    # a set without i is a number whose bit i is set; with i, the same without that bit
    each = [
        ((answers[:, code[g] ^ (1 << i)] - answers[:, g]) * table[kept[g]]).sum(-1)
        for i, g in enumerate(gone)
    ]
    return torch.stack(each, -1)


@register
@dataclass(frozen=True)
class ExactShapley(SharesOut):
    """The Shapley values of the explained output in the game "which features are there", from all 2^D sets.

    For up to 12 features. Over reference rows they are the interventional values of those rows, and sum to
    y(x) less the mean answer without features. What is asked here serves every metric that asks by masks.
    """

    name: ClassVar[str] = "exact_shapley"
    summary: ClassVar[str] = "Shapley values from all subsets of up to 12 features"
    paper: ClassVar[str] = "Shapley 1953; Lundberg and Lee 2017"

    def why_not(self, task: Task) -> str | None:
        most = int(task.space.counts(len(task)).max())
        if most > FEW:
            return f"it asks all 2^D subsets of up to {FEW} features, this task has {most}; use kernel_shap"
        return super().why_not(task)

    def rows_per_sample(self, task: Task) -> int:
        return 2 ** int(task.space.counts(len(task)).max())

    def masks(self, task: Task) -> Tensor:
        masks: Tensor = 2 ** task.space.counts(len(task)) - 1
        return masks

    def pieces(self, task: Task) -> Iterator[Task]:
        yield task

    def attribute(self, task: Task, key: Key) -> Tensor:
        counts, places = task.space.counts(len(task)), places_of(task)
        out = torch.zeros(places.shape, dtype=torch.float64, device=task.device)
        for n in counts.unique().tolist():
            rows = (counts == n).nonzero()[:, 0]
            rule = AllSubsets(places[rows], 2**n - 1)
            answers = probe(task[rows], rule, response="logit", key=self.fill_key(key), with_clean=True)
            values = shapley_values(answers, n)
            spread = values.gather(-1, places[rows].clamp(min=0))
            out[rows] = torch.where(places[rows] >= 0, spread, 0.0)
        return out.to(task.outputs.dtype)
