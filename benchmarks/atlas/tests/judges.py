"""Metrics whose place in an atlas is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

import veridical as vd
from benchmarks.atlas.bench import nearness
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.metrics.base import ExplainerMetric, Metric, Outcome


@dataclass(frozen=True)
class Coin(Metric):
    """A number drawn by the bits of the map and by the seed: it reads the map and knows nothing."""

    name: ClassVar[str] = "coin"
    category: ClassVar[str] = "sanity"

    def evaluate(self, task, explanation, context):
        ids = keyed.content_ids(explanation.values)
        return Outcome(keyed.uniform(context.key, ids, 0, 1, torch.float64)[:, 0])


@dataclass(frozen=True)
class Perfect(Metric):
    """Knows the true map of known/linear and says how near a map comes to it."""

    name: ClassVar[str] = "perfect"
    category: ClassVar[str] = "sanity"

    def evaluate(self, task, explanation, context):
        truth = vd.tasks.known("linear", len(task)).truth.double()
        values = explanation.values.double()
        size = values.norm(dim=-1).clamp(min=1e-30) * truth.norm(dim=-1)
        return Outcome(nearness(explanation, truth) + 1e-3 * (values * truth).sum(-1) / size)


@dataclass(frozen=True)
class CoinOfMethods(ExplainerMetric):
    """The coin, for methods."""

    name: ClassVar[str] = "coin_of_methods"
    category: ClassVar[str] = "sanity"

    def evaluate(self, task, explainer, context):
        ids = keyed.content_ids(explainer(task, Key(0)).values)
        return Outcome(keyed.uniform(context.key, ids, 0, 1, torch.float64)[:, 0])


@dataclass(frozen=True)
class Broken(Metric):
    """Raises, or has no score."""

    how: str = "raises"
    """What goes wrong."""
    name: ClassVar[str] = "broken"
    category: ClassVar[str] = "sanity"

    def evaluate(self, task, explanation, context):
        if self.how == "raises":
            raise vd.errors.InputError("it is broken")
        return Outcome(
            torch.full((len(task),), torch.nan), {"nothing to say": torch.ones(len(task), dtype=torch.bool)}
        )
