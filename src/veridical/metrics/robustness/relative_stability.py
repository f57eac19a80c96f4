"""Relative stability: the map's relative change beside that of the input, the output or a representation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.core.allowed import Positive
from veridical.metrics.base import Outcome
from veridical.metrics.input_noise import movable, touched
from veridical.metrics.robustness.neighbourhood import NeighbourMetric, explained_pairs, nan_where_any, worst
from veridical.metrics.types import Direction, Explainer, Key, Task
from veridical.models.predictor import check_finite


def relative_change(before: Tensor, after: Tensor, epsilon: float) -> Tensor:
    """‖(before - after) / (before + epsilon sign(before))‖ of each row, with sign(0) = 1, in float64."""
    before, after = before.double(), after.double()
    away = torch.where(before < 0, -epsilon, epsilon)
    return torch.linalg.vector_norm((before - after).div_(before + away), dim=-1)


def unchecked_outputs(task: Task) -> Tensor:
    """All outputs (N, C), counted; looking at them would wait for a GPU at every draw."""
    with task.session():
        return task.predictor.chunk(task.inputs, task.side)


def same_prediction(task: Task, before: Tensor, after: Tensor) -> Tensor:
    """Whether two sets of outputs (N, C) and (..., N, C) predict alike: one class, or all labels.

    A regression always does.
    """
    if task.head == "regression":
        return torch.ones(after.shape[:-1], dtype=torch.bool, device=before.device)
    if task.head == "multilabel":
        return ((before > 0) == (after > 0)).all(-1)
    return before.argmax(-1) == after.argmax(-1)


@dataclass(frozen=True)
class RelativeStability(NeighbourMetric):
    """max over draws of relative change of the map / max(change of something else, epsilon).

    The map's change is ‖(e - e') / (e + epsilon sign(e))‖ with sign(0) = 1. Draws that change the
    prediction are left out; where all do, the sample is NaN. A subclass says what else is read.
    """

    epsilon: Positive = 1e-6
    """Added to divisors, with their sign, and their smallest size."""
    category: ClassVar[str] = "robustness"
    direction: ClassVar[Direction] = Direction.LOWER
    assumes: ClassVar[str] = "an explanation may change as much, relatively, as what it explains"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer"})

    def reading(self, task: Task, clean: bool) -> tuple[Tensor, Tensor]:
        """What the map's change is held against (N, K), and the outputs (N, C), which the caller checks."""
        outputs = task.outputs if clean else unchecked_outputs(task)
        return outputs, outputs

    def moved(self, before: Tensor, after: Tensor) -> Tensor:
        """How far the reading moved (N,)."""
        return relative_change(before, after, self.epsilon)

    def evaluate(self, task: Task, explainer: Explainer, key: Key) -> Outcome:
        start = movable(task)
        before, answers = self.reading(start, True)
        kept: list[Tensor] = []
        sizes: list[Tensor] = []

        def ratio(near: Task, clean: Tensor, after: Tensor) -> Tensor:
            parts = self.reading(near, False)
            # NaN and infinity both show in the largest size, which is looked at when all is done
            looked_at = parts if parts[0] is not parts[1] else parts[:1]
            sizes.extend(torch.linalg.vector_norm(part, torch.inf, -1) for part in looked_at)
            reading, outputs = (part.unflatten(0, (-1, len(start))) for part in parts)
            same = same_prediction(task, answers, outputs)
            kept.append(same)
            change = relative_change(clean, after, self.epsilon)
            moved = self.moved(before, reading).clamp(min=self.epsilon)
            return torch.where(same, change / moved, torch.nan)

        _, table, flags = explained_pairs(self, start, explainer, key, ratio)
        check_finite(torch.cat(sizes).unflatten(0, (-1, len(start))).T)
        share = torch.cat(kept).double().mean(0)
        flags["every draw changed the prediction"] = share == 0
        values = nan_where_any(worst(table), flags)
        return Outcome(values, flags, details={"draws": table, "share of draws kept": share})


def flat_inputs(task: Task) -> Tensor:
    """Inputs as rows, 0 at elements that noise never touches."""
    return torch.where(touched(task), task.inputs, 0).flatten(1)
