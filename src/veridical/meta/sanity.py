"""Metrics whose meta-evaluation is known beforehand: two that must fail, and a cheat that must be caught."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.metrics.base import Metric, Outcome
from veridical.models.context import Context
from veridical.values.explanation import Explanation
from veridical.values.scores import Direction
from veridical.values.task import Task

UNPERTURBED = "unperturbed"
"""The purpose that keys of the unperturbed task carry."""


@dataclass(frozen=True)
class Same(Metric):
    """Always the same scores, U(0, 1) per sample: the vector must be (1, 0, 1, 0) (A.5.1)."""

    name: ClassVar[str] = "same"
    category: ClassVar[str] = "sanity"
    summary: ClassVar[str] = "sanity estimator: the same scores whatever is given"

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        return Outcome(keyed.uniform(Key(0) / self.name, task.draw_ids, 0, 1, torch.float64)[:, 0])


@dataclass(frozen=True)
class Different(Metric):
    """Unperturbed N(mu, 1), one mu ~ U[-1e5, -1] per explainer; perturbed N(0, 1): (0, 1, 1/L, 0) (A.5.1)."""

    name: ClassVar[str] = "different"
    category: ClassVar[str] = "sanity"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "sanity estimator: other scores under every perturbation"

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        who = context.key / explanation.explainer
        drawn = keyed.normal(who, task.draw_ids, 0, 1, torch.float64)[:, 0]
        if UNPERTURBED in context.key.path:
            centre = keyed.uniform(who / "centre", torch.zeros(1, dtype=torch.int64), 0, 1, torch.float64)
            drawn = drawn - 1e5 + (1e5 - 1) * centre[0, 0]
        return Outcome(drawn)


@dataclass(frozen=True)
class PredictionHolds(Metric):
    """A cheat: 1 while the model still predicts the explained class, else 0. It reads no map."""

    name: ClassVar[str] = "prediction_holds"
    category: ClassVar[str] = "sanity"
    summary: ClassVar[str] = "cheat: whether the prediction still holds"

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        return Outcome((task.predictions == task.targets).double())
