"""Explainers that read one gradient, or the mean of several along a path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.errors import InputError, ShapeError
from veridical.explainers.base import Explainer, register, selected
from veridical.predictor import call, repeat_side
from veridical.rng import Key
from veridical.task import Task


def gradient(task: Task, x: Tensor | None = None) -> Tensor:
    """d y_c / d x at the task's inputs, or at rows x that repeat each sample equally often in a row."""
    x = task.inputs if x is None else x
    times = len(x) // len(task)
    with task.session(grad=True) as model:
        x = x.detach().requires_grad_(True)
        outputs = call(model, x, repeat_side(task.side, times) if times > 1 else task.side)
        total = selected(outputs, task.targets.repeat_interleave(times)).sum()
        if not total.requires_grad:
            raise InputError("the model's outputs do not depend on its inputs through torch operations")
        (slope,) = torch.autograd.grad(total, x)
    return slope.detach()


@register
@dataclass(frozen=True)
class Gradient(Explainer):
    """The gradient of the explained output, signs kept: d y_c / d x."""

    name: ClassVar[str] = "gradient"
    summary: ClassVar[str] = "gradient of the output, signed"
    paper: ClassVar[str] = "Baehrens et al. 2010"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def attribute(self, task: Task, key: Key) -> Tensor:
        return gradient(task)


@register
@dataclass(frozen=True)
class Saliency(Explainer):
    """The absolute gradient: |d y_c / d x|."""

    name: ClassVar[str] = "saliency"
    summary: ClassVar[str] = "absolute gradient"
    paper: ClassVar[str] = "Simonyan et al. 2014"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def attribute(self, task: Task, key: Key) -> Tensor:
        return gradient(task).abs()


@register
@dataclass(frozen=True)
class InputXGradient(Explainer):
    """Input times gradient: x * d y_c / d x."""

    name: ClassVar[str] = "input_x_gradient"
    summary: ClassVar[str] = "input times gradient"
    paper: ClassVar[str] = "Shrikumar et al. 2016"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def attribute(self, task: Task, key: Key) -> Tensor:
        return task.inputs * gradient(task)


Quadrature = Literal["gauss_legendre", "midpoint", "trapezoid", "left", "right"]


def quadrature(rule: Quadrature, steps: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Points in [0, 1] and their weights, which sum to 1."""
    if steps < 1:
        raise InputError(f"a path needs at least one step, got {steps}")
    if rule == "gauss_legendre":
        import numpy as np

        points, weights = np.polynomial.legendre.leggauss(steps)
        return like.new_tensor((points + 1) / 2), like.new_tensor(weights / 2)
    at = torch.arange(steps, dtype=like.dtype, device=like.device)
    if rule == "trapezoid":
        if steps < 2:
            raise InputError("the trapezoid rule needs at least two steps")
        weights = torch.full_like(at, 1 / (steps - 1))
        weights[0] = weights[-1] = 0.5 / (steps - 1)
        return at / (steps - 1), weights
    offset = {"midpoint": 0.5, "left": 0.0, "right": 1.0}
    if rule not in offset:
        raise InputError(f"quadrature '{rule}' is unknown; choose gauss_legendre, trapezoid, {', '.join(offset)}")
    return (at + offset[rule]) / steps, torch.full_like(at, 1 / steps)


@register
@dataclass(frozen=True)
class IntegratedGradients(Explainer):
    """The mean gradient along the straight path from a baseline, times the way: completeness in the limit.

    The baseline is a number for all elements, or "mean" for the mean of the reference rows.
    """

    steps: int = 32
    baseline: float | str = 0.0
    rule: Quadrature = "gauss_legendre"
    name: ClassVar[str] = "integrated_gradients"
    summary: ClassVar[str] = "gradients integrated from a baseline"
    paper: ClassVar[str] = "Sundararajan et al. 2017"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def rows_per_sample(self, task: Task) -> int:
        return self.steps

    def attribute(self, task: Task, key: Key) -> Tensor:
        start = self._start(task)
        way = task.inputs - start
        points, weights = quadrature(self.rule, self.steps, task.inputs)
        shape = (1, -1, *[1] * (task.inputs.dim() - 1))
        rows = (start[:, None] + points.reshape(shape) * way[:, None]).flatten(0, 1)
        slopes = gradient(task, rows).unflatten(0, (len(task), self.steps))
        return way * (slopes * weights.reshape(shape)).sum(1)

    def _start(self, task: Task) -> Tensor:
        if isinstance(self.baseline, str):
            if self.baseline != "mean":
                raise InputError(f"a baseline is a number or 'mean', got {self.baseline!r}")
            if task.train is None:
                raise ShapeError("baseline='mean' is the mean of reference rows; give the task train=...")
            return task.train.mean(0, keepdim=True)
        return torch.full_like(task.inputs[:1], self.baseline)
