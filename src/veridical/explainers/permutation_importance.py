"""Permutation importance of one sample: what the output loses when a feature takes the values of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.explainers.base import FILL_KEY, Explainer, register
from veridical.perturb.fills import Marginal
from veridical.perturb.probe import probe
from veridical.perturb.rules import Groups
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class PermutationImportance(Explainer):
    """phi_i = y(x) - mean over reference rows r of y(x with its i-th feature from r).

    On a linear model that is w_i (x_i - mean of r_i). Breiman's importance of a feature is the mean over
    samples of what a loss gains by it; here the explained output stands in its place. Rows: features x
    `rows` for each sample.
    """

    rows: Count = 16
    """Reference rows whose values a feature takes."""
    name: ClassVar[str] = "permutation_importance"
    summary: ClassVar[str] = "fall of the output when a feature takes the values of reference rows"
    paper: ClassVar[str] = "Breiman 2001; Fisher et al. 2019"
    needs: ClassVar[frozenset[str]] = frozenset({"train"})

    def rows_per_sample(self, task: Task) -> int:
        return Marginal(self.rows).repeats_on(task) * task.space.n_features

    def attribute(self, task: Task, key: Key) -> Tensor:
        rule = Groups(task.space.n_features, task.device)
        fill = Marginal(self.rows)
        answers = probe(task, rule, response="logit", fill=fill, key=FILL_KEY, with_clean=True)
        return (answers[:, :1] - answers[:, 1:]).to(task.outputs.dtype)
