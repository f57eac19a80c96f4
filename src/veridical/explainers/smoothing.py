"""Explainers that look at the gradient under input noise: its mean, its mean square, its variance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.core.allowed import Count, NotNegative
from veridical.core.key import Key
from veridical.explainers.base import Explainer, register
from veridical.explainers.gradients import baseline_row, gradient, input_noise, integrated, parts
from veridical.models.context import Context
from veridical.values.task import Task

Base = Literal["gradient", "integrated_gradients"]


def no_noise_on_units(task: Task) -> str | None:
    """Why inputs take no noise, or None if they do."""
    return "it adds noise to inputs, and a unit is on or off" if task.modality == "units" else None


@dataclass(frozen=True)
class Smoothing(Explainer):
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
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})
    stochastic: ClassVar[bool] = True

    def why_not(self, task: Task) -> str | None:
        return super().why_not(task) or no_noise_on_units(task)

    @property
    def _rows_each(self) -> int:
        return self.steps if self.base == "integrated_gradients" else 1

    def rows_per_sample(self, task: Task) -> int:
        return self.samples * self._rows_each

    def noisy_maps(self, task: Task, key: Key) -> Iterator[Tensor]:
        """The maps under noise, some draws at a time: (n, draws, *input shape)."""
        for part in parts(self.samples, len(task) * self._rows_each, task.predictor.rows):
            draws = torch.arange(part.start, part.stop, device=task.device)
            x = (task.inputs[:, None] + input_noise(task, key, draws, self.noise)).flatten(0, 1)
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
