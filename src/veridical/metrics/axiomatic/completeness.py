"""Completeness: does the relevance add up to what the model's answer owes to the input?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from veridical.backgrounds import is_fixed
from veridical.deferred import look_later
from veridical.explanation import Explanation
from veridical.fill import Fill
from veridical.metrics.base import Metric, Outcome, register
from veridical.metrics.blocks import in_blocks
from veridical.predictor import check_finite
from veridical.probe import known, unchecked
from veridical.recorded import recorded
from veridical.rng import Key
from veridical.scores import Direction
from veridical.task import Response, Task


def total_relevance(values: Tensor, valid: Tensor | None) -> Tensor:
    """The sum of each map over the features that exist, in float64."""
    if valid is not None:
        values = values.masked_fill(~valid, 0.0)
    return values.sum(-1, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Everything:
    """One mask, which removes all features (1, V)."""

    features: Tensor
    count: ClassVar[int] = 1

    def removed(self, samples: slice, masks: slice) -> Tensor:
        return self.features[None]

    def signature(self, matters: Tensor) -> Tensor:
        """0 for a sample of which no feature matters."""
        return matters.any(-1, keepdim=True)


@register
@dataclass(frozen=True)
class Completeness(Metric):
    """|sum_i e_i - (y_c(x) - y_c(x without all features))|, on logits: a gap, not a test for equality.

    The baseline is the fill put in the place of every feature; choose the explainer's own (integrated
    gradients from zero: fill="zero").
    """

    response: Response = "logit"
    fill: Fill | None = None
    name: ClassVar[str] = "completeness"
    category: ClassVar[str] = "axiomatic"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the relevance add up to the change of the model's answer?"
    assumes: ClassVar[str] = "the map is meant to add up, in the units of the logits"
    misleads: ClassVar[str] = "only the sum counts, so the right sum in the wrong places is perfect"
    paper: ClassVar[str] = "Sundararajan et al. 2017"
    permutation_invariant: ClassVar[bool] = True

    def evaluate(self, task: Task, explanation: Explanation, key: Key) -> Outcome:
        fill = self.fill or task.fill

        def change(of: Task) -> tuple[Tensor, Tensor]:
            shape = 1, of.space.n_features
            every = of.cached("all features", lambda: of.inputs.new_ones(shape, dtype=torch.bool))
            asked, answers = unchecked(of, Everything(every), self.response, fill, key, with_clean=True)
            return asked[:, 0] - asked[:, 1], answers

        if is_fixed(fill):
            knows = partial(known, task, self.response, fill, key)
            owed, answers = recorded(task, ("completeness", self.response, fill), change, knows)
        else:
            owed, answers = change(task)
        look_later(answers.device, partial(check_finite, answers))
        total = in_blocks(total_relevance, explanation.values, explanation.valid)
        return Outcome((total - owed).abs(), details={"sum of relevance": total, "change of answer": owed})
