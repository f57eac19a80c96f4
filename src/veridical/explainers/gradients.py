"""Explainers that read one gradient, or several: along a path, from many baselines, under input noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count, NotNegative, Value
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError, VeridicalError
from veridical.explainers.base import Explainer, keep_outputs, register, selected
from veridical.explainers.diagnostics import difference_from_baselines
from veridical.explainers.input_noise import gaussian_draws, own_range
from veridical.models.context import Context
from veridical.models.predictor import call, out_of_memory, repeat_side
from veridical.values.task import Task


def gradient(task: Task, x: Tensor | None = None, context: Context | None = None) -> Tensor:
    """The gradient d y_c / d x of the explained output.

    Parameters
    ----------
    task : Task
        The model, its inputs and the explained outputs c.
    x : Tensor, optional
        Rows to take it at instead of the task's inputs; each sample repeated equally often in a row.
    context : Context, optional
        The call in which the task's outputs, computed on the way, are of use.

    Returns
    -------
    Tensor
        One gradient for each row, of the shape of the rows.

    Raises
    ------
    InputError
        If no gradient comes back to the inputs.
    NotApplicableError
        If torch cannot backpropagate through the model.
    """
    rows = (task.inputs if x is None else x).detach().requires_grad_(True)
    times = len(rows) // len(task.inputs)
    side, targets = task.side, task.targets
    if times > 1:
        side, targets = repeat_side(side, times), targets.repeat_interleave(times)
    with task.session(grad=True) as model:
        outputs = call(model, rows, side)
        if context is not None:
            keep_outputs(context, task, outputs)
        return input_gradient(selected(outputs, targets).sum(), rows)


def input_gradient(total: Tensor, rows: Tensor, again: bool = False) -> Tensor:
    """The gradient of a total with respect to rows; `again` if it is taken more than once."""
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
    """The gradient at each of these tensors, None where none comes back."""
    graded = [place for place in places if place.requires_grad]
    if not total.requires_grad or not graded:
        return [None] * len(places)
    try:
        found = iter(torch.autograd.grad(total, graded, allow_unused=True))
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


@dataclass(frozen=True)
class ByGradients(Explainer):
    """Base of the methods that read gradients of the explained output."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})


@register
@dataclass(frozen=True)
class Gradient(ByGradients):
    """The gradient of the explained output, signs kept: d y_c / d x."""

    name: ClassVar[str] = "gradient"
    summary: ClassVar[str] = "gradient of the output, signed"
    paper: ClassVar[str] = "Baehrens et al. 2010"

    def attribute(self, task: Task, context: Context) -> Tensor:
        return gradient(task, context=context)


@register
@dataclass(frozen=True)
class Saliency(ByGradients):
    """The absolute gradient: |d y_c / d x|."""

    name: ClassVar[str] = "saliency"
    summary: ClassVar[str] = "absolute gradient"
    paper: ClassVar[str] = "Simonyan et al. 2014"

    def attribute(self, task: Task, context: Context) -> Tensor:
        return gradient(task, context=context).abs()


@register
@dataclass(frozen=True)
class InputXGradient(ByGradients):
    """Input times gradient: x * d y_c / d x."""

    name: ClassVar[str] = "input_x_gradient"
    summary: ClassVar[str] = "input times gradient"
    paper: ClassVar[str] = "Shrikumar et al. 2016"

    def attribute(self, task: Task, context: Context) -> Tensor:
        return task.inputs * gradient(task, context=context)


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
class IntegratedGradients(ByGradients):
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
    completeness: ClassVar[str] = "values sum to y(x) - y(baseline), as far as the steps integrate the path"

    def __post_init__(self) -> None:
        if self.rule == "trapezoid" and self.steps < 2:
            raise InputError("the trapezoid rule needs at least two steps")
        if self.rule == "gauss_legendre" and self.steps > MOST_NODES:
            quadrature(self.rule, self.steps, torch.zeros(1))

    def rows_per_sample(self, task: Task) -> int:
        return self.steps

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or no_baseline(task, self.baseline)

    def _expected_sum(self, task: Task, key: Key) -> Tensor:
        return difference_from_baselines(task, lambda at: baseline_row(at, self.baseline))

    def attribute(self, task: Task, context: Context) -> Tensor:
        return integrated(task, task.inputs, baseline_row(task, self.baseline), self.rule, self.steps)


# --- random baselines -------------------------------------------------------------------------------------


def noisy_inputs(task: Task, key: Key, draws: slice, share: float) -> Tensor:
    """The inputs under normal noise (n, draws, *input shape), its deviation a share of each sample's range.

    Elements of features that do not exist in a sample (padding) get none and do not count for the range.
    """
    drawn = gaussian_draws(task, key / "noise", range(draws.start, draws.stop)).transpose(0, 1)
    return torch.addcmul(task.inputs[:, None], drawn, share * own_range(task)[:, None])


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
        x = noisy_inputs(task, key, part, noise) if noise else task.inputs[:, None]
        place = keyed.uniform(key / "place", task.draw_ids, draws, 1, torch.float64).to(x.dtype)
        way = x - start
        rows = start + place.reshape(*place.shape[:2], *[1] * (way.dim() - 2)) * way
        slopes = gradient(task, rows.flatten(0, 1)).unflatten(0, (len(task), -1))
        total += (way * slopes).sum(1)
    return total / samples


@dataclass(frozen=True)
class _FromRandomBaselines(ByGradients):
    samples: Count = 32
    """Random points per sample at which the gradient is read."""
    exact: ClassVar[bool] = False
    stochastic: ClassVar[bool] = True

    def rows_per_sample(self, task: Task) -> int:
        return self.samples

    def _expected_sum(self, task: Task, key: Key) -> Tensor:
        return difference_from_baselines(task, _all_baselines)


@register
@dataclass(frozen=True)
class GradientShap(_FromRandomBaselines):
    """Gradients at random points between the input and random reference rows, times the way.

    Without reference rows the baseline is zero.
    """

    noise: NotNegative = 0.0
    """Deviation of normal noise added to the input, as a share of each sample's range."""
    name: ClassVar[str] = "gradient_shap"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "gradients at random points on the way from random baselines"
    paper: ClassVar[str] = "Lundberg and Lee 2017"
    completeness: ClassVar[str] = "values sum to y(x) less the mean of y over the baselines, in expectation"

    def attribute(self, task: Task, context: Context) -> Tensor:
        return from_random_baselines(task, context.key, self.samples, self.noise)


@register
@dataclass(frozen=True)
class ExpectedGradients(_FromRandomBaselines):
    """Integrated gradients in expectation over reference rows x': E[(x - x') * dy_c/dx (x' + t (x - x'))]."""

    samples: Count = 64
    """Random points per sample at which the gradient is read."""
    name: ClassVar[str] = "expected_gradients"
    summary: ClassVar[str] = "integrated gradients over all reference rows as baselines"
    paper: ClassVar[str] = "Erion et al. 2021"
    completeness: ClassVar[str] = (
        "values sum to y(x) less the mean of y over the reference rows, in expectation"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "train"})

    def attribute(self, task: Task, context: Context) -> Tensor:
        return from_random_baselines(task, context.key, self.samples)


Base = Literal["gradient", "integrated_gradients"]


def no_noise_on_units(task: Task) -> str | None:
    """Why inputs take no noise, or None if they do."""
    return "it adds noise to inputs, and a unit is on or off" if task.modality == "units" else None


@dataclass(frozen=True)
class Smoothing(ByGradients):
    """Base of the methods that repeat a map under noise N(0, (noise * range)^2) added to the input.

    The published F-Fidelity program repeats base="integrated_gradients".
    """

    samples: Count = 32
    """Noisy copies per sample."""
    noise: NotNegative = 0.15
    """Deviation of the noise, as a share of each sample's own range."""
    base: Base = "gradient"
    """The map that is repeated: "gradient", or "integrated_gradients" from zero."""
    steps: Count = 16
    """Points on the path, where the base is "integrated_gradients"."""
    version: ClassVar[int] = 2
    stochastic: ClassVar[bool] = True

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or no_noise_on_units(task)

    @property
    def _rows_each(self) -> int:
        return self.steps if self.base == "integrated_gradients" else 1

    def rows_per_sample(self, task: Task) -> int:
        return self.samples * self._rows_each

    def noisy_maps(self, task: Task, key: Key) -> Iterator[Tensor]:
        """The maps under noise, some draws at a time: (n, draws, *input shape)."""
        for part in parts(self.samples, len(task) * self._rows_each, task.predictor.rows):
            x = noisy_inputs(task, key, part, self.noise).flatten(0, 1)
            if self.base == "gradient":
                maps = gradient(task, x)
            else:
                maps = integrated(task, x, baseline_row(task, 0.0), "gauss_legendre", self.steps)
            yield maps.unflatten(0, (len(task), -1))


@register
@dataclass(frozen=True)
class SmoothGrad(Smoothing):
    """The mean map under input noise: 1/S sum_s g(x + n_s), signs kept."""

    name: ClassVar[str] = "smoothgrad"
    summary: ClassVar[str] = "mean gradient under input noise"
    paper: ClassVar[str] = "Smilkov et al. 2017"

    def attribute(self, task: Task, context: Context) -> Tensor:
        total = torch.zeros_like(task.inputs)
        for maps in self.noisy_maps(task, context.key):
            total += maps.sum(1)
        return total / self.samples


@register
@dataclass(frozen=True)
class SmoothGradSquared(Smoothing):
    """The mean squared map under input noise: 1/S sum_s g(x + n_s)^2."""

    name: ClassVar[str] = "smoothgrad_squared"
    summary: ClassVar[str] = "mean squared gradient under input noise"
    paper: ClassVar[str] = "Hooker et al. 2019"

    def attribute(self, task: Task, context: Context) -> Tensor:
        total = torch.zeros_like(task.inputs)
        for maps in self.noisy_maps(task, context.key):
            total += maps.square().sum(1)
        return total / self.samples


@register
@dataclass(frozen=True)
class VarGrad(Smoothing):
    """The variance of the map under input noise: 1/S sum_s (g(x + n_s) - mean)^2."""

    name: ClassVar[str] = "vargrad"
    summary: ClassVar[str] = "variance of the gradient under input noise"
    paper: ClassVar[str] = "Adebayo et al. 2018"

    def attribute(self, task: Task, context: Context) -> Tensor:
        first: Tensor | None = None
        total = torch.zeros_like(task.inputs)
        squares = torch.zeros_like(task.inputs)
        for maps in self.noisy_maps(task, context.key):
            # measured from the first draw: E[g^2] - E[g]^2 would cancel where the mean is large
            first = maps[:, :1] if first is None else first
            away = maps - first
            total += away.sum(1)
            squares += away.square().sum(1)
        return (squares / self.samples - (total / self.samples).square()).clamp(min=0)
