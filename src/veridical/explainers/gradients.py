"""Explainers that read one gradient, or the mean of several along a path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.core.allowed import Count, Value
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError, VeridicalError
from veridical.explainers.base import Explainer, hand_along, register, selected
from veridical.explainers.laws import change_from
from veridical.models.predictor import call, out_of_memory, repeat_side
from veridical.models.sessions import Session
from veridical.values.task import Task


def gradient(task: Task, x: Tensor | None = None) -> Tensor:
    """d y_c / d x at the task's inputs, or at rows x that repeat each sample equally often in a row."""
    rows = (task.inputs if x is None else x).detach().requires_grad_(True)
    times = len(rows) // len(task.inputs)
    side, targets = task.side, task.targets
    if times > 1:
        side, targets = repeat_side(side, times), targets.repeat_interleave(times)
    with Session(task.predictor, grad=True) as model:
        outputs = call(model, rows, side)
        if x is None:
            hand_along(task, outputs)
        return input_gradient(selected(outputs, targets).sum(), rows)


def input_gradient(total: Tensor, rows: Tensor, again: bool = False) -> Tensor:
    """The gradient of a total with respect to rows; `again` if it is asked for more than once."""
    found = None
    try:
        if total.requires_grad:
            (found,) = torch.autograd.grad(total, rows, allow_unused=True, retain_graph=again)
    except RuntimeError as error:
        raise _cannot_backpropagate(error) from error
    if found is None:
        raise InputError(
            "no gradient comes back from the model's outputs to its inputs: something between them is "
            "detached, or no torch operation; methods that use outputs alone, such as occlusion, apply"
        )
    return found.detach()


def slopes_at(total: Tensor, places: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """The gradient at each of these places, None where none comes back; what torch cannot do is refused."""
    asked = [place for place in places if place.requires_grad]
    if not total.requires_grad or not asked:
        return [None] * len(places)
    try:
        found = iter(torch.autograd.grad(total, asked, allow_unused=True))
    except RuntimeError as error:
        raise _cannot_backpropagate(error) from error
    return [next(found) if place.requires_grad else None for place in places]


def _cannot_backpropagate(error: RuntimeError) -> NotApplicableError:
    """What torch cannot backpropagate through; an error that says more is raised as it is."""
    if isinstance(error, VeridicalError) or out_of_memory(error):
        raise error
    first_line = str(error).strip().splitlines()[0]
    return NotApplicableError(
        f"torch cannot backpropagate through this model ({type(error).__name__}: {first_line}). A checkpoint "
        "or autocast inside it may stand in the way; methods that need no gradient apply, such as occlusion"
    )


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
        if steps > MOST_NODES:
            raise InputError(
                f"Gauss-Legendre takes at most {MOST_NODES} steps, got {steps}; rule='midpoint' takes more"
            )
        points, shares = _gauss_legendre(steps)
        return like.new_tensor(points), like.new_tensor(shares)
    at = torch.arange(steps, dtype=like.dtype, device=like.device)
    if rule == "trapezoid":
        if steps < 2:
            raise InputError("the trapezoid rule needs at least two steps")
        weights = torch.full_like(at, 1 / (steps - 1))
        weights[0] = weights[-1] = 0.5 / (steps - 1)
        return at / (steps - 1), weights
    offset = {"midpoint": 0.5, "left": 0.0, "right": 1.0}
    if rule not in offset:
        raise InputError(
            f"quadrature '{rule}' is unknown; choose gauss_legendre, trapezoid, {', '.join(offset)}"
        )
    return (at + offset[rule]) / steps, torch.full_like(at, 1 / steps)


MOST_NODES = 2000
"""Nodes of Gauss-Legendre come from an eigenproblem of this size: more take minutes, then all memory."""


@lru_cache(maxsize=32)
def _gauss_legendre(steps: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    import numpy as np

    nodes, shares = np.polynomial.legendre.leggauss(steps)
    return tuple(((nodes + 1) / 2).tolist()), tuple((shares / 2).tolist())


def parts(count: int, rows_each: int, limit: int) -> Iterator[slice]:
    """Cut `count` draws or steps of `rows_each` rows into pieces that keep within `limit` rows."""
    size = max(1, limit // max(1, rows_each))
    for at in range(0, count, size):
        yield slice(at, min(count, at + size))


def no_baseline(task: Task, baseline: float | str) -> str | None:
    """Why the task has no such baseline, or None if it has."""
    if isinstance(baseline, str) and task.train is None:
        return "baseline='mean' is the mean of reference rows; give the task train=..."
    return None


def baseline_row(task: Task, baseline: float | str) -> Tensor:
    """The baseline (1, *input shape): one number everywhere, or the mean of the reference rows."""
    if isinstance(baseline, str):
        if task.train is None:
            raise InputError("baseline='mean' is the mean of reference rows; give the task train=...")
        return task.train.mean(0, keepdim=True)
    return torch.full_like(task.inputs[:1], baseline)


def integrated(task: Task, x: Tensor, start: Tensor, rule: Quadrature, steps: int) -> Tensor:
    """(x - start) times the mean gradient between them, for rows x that repeat each sample equally often."""
    way = x - start
    points, weights = quadrature(rule, steps, x)
    column = (1, -1, *[1] * (x.dim() - 1))
    mean = torch.zeros_like(x)
    for part in parts(steps, len(x), task.predictor.rows):
        rows = start[:, None] + points[part].reshape(column) * way[:, None]
        slopes = gradient(task, rows.flatten(0, 1)).unflatten(0, (len(x), -1))
        mean += (slopes * weights[part].reshape(column)).sum(1)
    return way * mean


@register
@dataclass(frozen=True)
class IntegratedGradients(Explainer):
    """The mean gradient along the straight path from a baseline, times the way: completeness in the limit.

    e = (x - x0) * integral over t in [0, 1] of dy_c/dx at x0 + t (x - x0); its sum is y_c(x) - y_c(x0).
    """

    steps: Count = 32
    """Points on the path at which the gradient is read."""
    baseline: Value | Literal["mean"] = 0.0
    """Where the path starts, x0: one number for all elements, or "mean" of the reference rows."""
    rule: Quadrature = "gauss_legendre"
    """How points and weights are chosen: "gauss_legendre", "midpoint", "trapezoid", "left" or "right"."""
    name: ClassVar[str] = "integrated_gradients"
    summary: ClassVar[str] = "gradients integrated from a baseline"
    paper: ClassVar[str] = "Sundararajan et al. 2017, eq. 1"
    law: ClassVar[str] = "values sum to y(x) - y(baseline), as far as the steps integrate the path"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def __post_init__(self) -> None:
        if self.rule == "trapezoid" and self.steps < 2:
            raise InputError("the trapezoid rule needs at least two steps")
        if self.rule == "gauss_legendre" and self.steps > MOST_NODES:
            quadrature(self.rule, self.steps, torch.zeros(1))

    def rows_per_sample(self, task: Task) -> int:
        return self.steps

    def why_not(self, task: Task) -> str | None:
        return super().why_not(task) or no_baseline(task, self.baseline)

    def promised(self, task: Task, key: Key) -> Tensor:
        return change_from(task, lambda at: baseline_row(at, self.baseline))

    def attribute(self, task: Task, key: Key) -> Tensor:
        return integrated(task, task.inputs, baseline_row(task, self.baseline), self.rule, self.steps)
