"""Confidence under the map: what is left of the probability when the input is multiplied by it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.functional import pearson, round_to_grid
from veridical.metrics import (
    AnyMetric,
    Context,
    Direction,
    Explainer,
    ExplainerMetric,
    Explanation,
    Metric,
    Outcome,
    Task,
    register,
)
from veridical.metrics.re_explaining import explaining, one_session


def soft_mask(values: Tensor, valid: Tensor | None) -> Tensor:
    """|e| of each map stretched to [0, 1] (N, V); constant maps give 0, as in the published programs.

    Features that do not exist get 1: what stands there stays.
    """
    size = values.double().abs()
    exists = torch.ones_like(size, dtype=torch.bool) if valid is None else valid
    low = size.masked_fill(~exists, torch.inf).amin(-1, keepdim=True)
    high = size.masked_fill(~exists, 0.0).amax(-1, keepdim=True)
    return torch.where(exists, (size - low) / torch.where(high > low, high - low, 1.0), 1.0)


def masked_inputs(task: Task, mask: Tensor) -> Task:
    """The samples multiplied by a soft mask of their features (N, V)."""
    return task.with_inputs(task.inputs * task.space.expand(mask).to(task.inputs))


def confidences(task: Task, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of the explained output as it is, and of the input multiplied by the mask (N,)."""
    outputs = task.predictor.outputs(masked_inputs(task, mask).inputs, task.side)
    after = task.respond(outputs).gather(1, task.targets[:, None])
    both = torch.cat([task.clean_response("probability"), after.to(task.outputs)], 1)
    before, left = round_to_grid(both, task.predictor.rounding).double().unbind(1)
    return before, left


def why_no_soft_mask(task: Task) -> str | None:
    """Why inputs cannot be multiplied by a map, or None if they can."""
    if task.head in ("regression", "generation"):
        return f"it compares probabilities, and a {task.head} has none"
    if not task.inputs.is_floating_point() or bool(task.inputs.isnan().any()):
        return "it multiplies inputs by the map, and these are token ids or have missing values"
    return None


@dataclass(frozen=True)
class _SoftMasked(AnyMetric):
    category: ClassVar[str] = "faithfulness"
    modalities: ClassVar[frozenset[str]] = frozenset({"image", "series", "table"})
    assumes: ClassVar[str] = "an input multiplied by a map is like those the model was trained on"
    misleads: ClassVar[str] = (
        "the more a map covers the better: a nearly constant map leaves the input as it is"
    )

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or why_no_soft_mask(task)


@dataclass(frozen=True)
class _Confidence(_SoftMasked, Metric):
    def _score(self, before: Tensor, after: Tensor) -> Tensor:
        raise NotImplementedError

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        before, after = confidences(task, soft_mask(explanation.values, explanation.valid))
        return Outcome(self._score(before, after), details={"before": before, "after": after})


@register
@dataclass(frozen=True)
class AverageDrop(_Confidence):
    """max(0, p(x) - p(x ⊙ M)) / p(x), where M is |e| stretched to [0, 1]."""

    name: ClassVar[str] = "average_drop"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Which share of the probability is lost when the input is multiplied by the map?"
    paper: ClassVar[str] = "Chattopadhay et al. 2018"

    def _score(self, before: Tensor, after: Tensor) -> Tensor:
        return (before - after).clamp(min=0) / before.clamp(min=torch.finfo(before.dtype).tiny)


@register
@dataclass(frozen=True)
class AverageIncrease(_Confidence):
    """1 where p(x ⊙ M) > p(x), else 0; the mean over samples is the published increase in confidence."""

    name: ClassVar[str] = "average_increase"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does the probability grow when the input is multiplied by the map?"
    paper: ClassVar[str] = "Chattopadhay et al. 2018"

    def _score(self, before: Tensor, after: Tensor) -> Tensor:
        return (after > before).double()


@register
@dataclass(frozen=True)
class AverageGain(_Confidence):
    """max(0, p(x ⊙ M) - p(x)) / (1 - p(x)); 0 where nothing is left to gain."""

    name: ClassVar[str] = "average_gain"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Which share of the missing probability is won by multiplying with the map?"
    paper: ClassVar[str] = "Zhang et al. 2024"

    def _score(self, before: Tensor, after: Tensor) -> Tensor:
        room = 1 - before
        return torch.where(room > 0, (after - before).clamp(min=0) / torch.where(room > 0, room, 1.0), 0.0)


@register
@dataclass(frozen=True)
class Adcc(_SoftMasked, ExplainerMetric):
    """The harmonic mean of coherency, 1 - complexity and 1 - average drop.

    Coherency is (1 + r) / 2 for Pearson's r of M with the mask of the map made again at x ⊙ M; complexity
    is the mean of M.
    """

    name: ClassVar[str] = "adcc"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Is the map small, kept by the input it leaves, and enough for the probability?"
    paper: ClassVar[str] = "Poppi et al. 2021"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer"})

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        valid = task.space.valid
        with one_session(task, explainer), explaining(explainer, context, task) as explain:
            first = soft_mask(explain(task, context.key / "clean"), valid)
            missing = explain.missing
            again = explain(masked_inputs(task, first.nan_to_num()), context.key / "masked")
        before, after = confidences(task, first.nan_to_num())
        exists = torch.ones_like(first, dtype=torch.bool) if valid is None else valid.expand_as(first)
        parts = {
            "coherency": (1 + pearson(first, soft_mask(again, valid), where=valid).nan_to_num()) / 2,
            "1 - complexity": 1 - first.where(exists, 0.0).sum(-1) / exists.sum(-1),
            "1 - drop": 1 - AverageDrop()._score(before, after),
        }
        table = torch.stack([*parts.values()], -1)
        worst = table.amin(-1) <= 0
        values = 3 / (1 / torch.where(worst[:, None], 1.0, table)).sum(-1)
        values = torch.where(worst, 0.0, values).masked_fill(missing, torch.nan)
        return Outcome(values, {"no explanation": missing}, details=parts)
