"""Explainers that integrate gradients from many baselines at random points of the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count, NotNegative
from veridical.core.key import Key
from veridical.explainers.base import Explainer, register
from veridical.explainers.gradients import gradient, parts
from veridical.explainers.laws import change_from
from veridical.explainers.smoothing import input_noise
from veridical.values.task import Task


def baselines(task: Task, key: Key, draws: Tensor) -> Tensor:
    """A reference row a (sample, draw), drawn with replacement: (n, draws, *input shape); else zeros."""
    if task.train is None:
        return torch.zeros_like(task.inputs[:, None]).expand(-1, len(draws), *task.inputs.shape[1:])
    rows = keyed.integers(key / "baseline", task.draw_ids, draws, 1, len(task.train))[..., 0]
    return task.train[rows]


def _all_baselines(task: Task) -> Tensor:
    """The rows that baselines are drawn from."""
    return torch.zeros_like(task.inputs[:1]) if task.train is None else task.train


def from_random_baselines(task: Task, key: Key, samples: int, noise: float = 0.0) -> Tensor:
    """The mean over draws of (x - x') * dy_c/dx at x' + t (x - x'), with t ~ U[0, 1) and x' a baseline."""
    total = torch.zeros_like(task.inputs)
    for part in parts(samples, len(task), task.predictor.rows):
        draws = torch.arange(part.start, part.stop, device=task.device)
        start = baselines(task, key, draws)
        x = task.inputs[:, None]
        if noise:
            x = x + input_noise(task, key, draws, noise)
        place = keyed.uniform(key / "place", task.draw_ids, draws, 1, torch.float64).to(x.dtype)
        way = x - start
        rows = start + place.reshape(*place.shape[:2], *[1] * (way.dim() - 2)) * way
        slopes = gradient(task, rows.flatten(0, 1)).unflatten(0, (len(task), -1))
        total += (way * slopes).sum(1)
    return total / samples


@dataclass(frozen=True)
class _FromRandomBaselines(Explainer):
    samples: Count = 32
    """Random points per sample at which the gradient is read."""
    exact: ClassVar[bool] = False
    stochastic: ClassVar[bool] = True

    def rows_per_sample(self, task: Task) -> int:
        return self.samples

    def promised(self, task: Task, key: Key) -> Tensor:
        return change_from(task, _all_baselines)


@register
@dataclass(frozen=True)
class GradientShap(_FromRandomBaselines):
    """Gradients at random points between the input and random reference rows, times the way.

    Without reference rows the baseline is zero.
    """

    noise: NotNegative = 0.0
    """Deviation of normal noise added to the input, as a share of each sample's range."""
    name: ClassVar[str] = "gradient_shap"
    summary: ClassVar[str] = "gradients at random points on the way from random baselines"
    paper: ClassVar[str] = "Lundberg and Lee 2017"
    law: ClassVar[str] = "values sum to y(x) less the mean of y over the baselines, in expectation"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def attribute(self, task: Task, key: Key) -> Tensor:
        return from_random_baselines(task, key, self.samples, self.noise)


@register
@dataclass(frozen=True)
class ExpectedGradients(_FromRandomBaselines):
    """Integrated gradients in expectation over reference rows x': E[(x - x') * dy_c/dx (x' + t (x - x'))]."""

    samples: Count = 64
    """Random points per sample at which the gradient is read."""
    name: ClassVar[str] = "expected_gradients"
    summary: ClassVar[str] = "integrated gradients over all reference rows as baselines"
    paper: ClassVar[str] = "Erion et al. 2021"
    law: ClassVar[str] = "values sum to y(x) less the mean of y over the reference rows, in expectation"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "train"})

    def attribute(self, task: Task, key: Key) -> Tensor:
        return from_random_baselines(task, key, self.samples)
