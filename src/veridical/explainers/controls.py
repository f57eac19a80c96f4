"""Controls: maps that know nothing of the model and that no honest metric should prefer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.explainers.base import Explainer, register
from veridical.explainers.grid import as_features, time_axis
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class Random(Explainer):
    """Uniform noise on [0, 1), drawn anew for every sample and key (RAN in the GEF paper)."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "control: uniform noise"
    paper: ClassVar[str] = "control"
    stochastic: ClassVar[bool] = True
    control: ClassVar[bool] = True

    def attribute(self, task: Task, key: Key) -> Tensor:
        return keyed.uniform(key, task.draw_ids, 0, task.space.n_features)


@register
@dataclass(frozen=True)
class RandomK(Explainer):
    """K features drawn at random are 1, all others 0 (RAN-K in the GEF paper).

    A sample with fewer than K features has 1 in all of them.
    """

    k: Count = 5
    """Features that are 1."""
    name: ClassVar[str] = "random_k"
    summary: ClassVar[str] = "control: K random features"
    paper: ClassVar[str] = "control"
    stochastic: ClassVar[bool] = True
    control: ClassVar[bool] = True

    def attribute(self, task: Task, key: Key) -> Tensor:
        space = task.space
        ranks = keyed.random_ranks(key, task.draw_ids, 0, space.n_features, space.valid)
        return (ranks < self.k).to(torch.get_default_dtype())


@register
@dataclass(frozen=True)
class Constant(Explainer):
    """The same relevance, 1, for every feature: a map without any information."""

    name: ClassVar[str] = "constant"
    summary: ClassVar[str] = "control: every feature alike"
    paper: ClassVar[str] = "control"
    control: ClassVar[bool] = True

    def attribute(self, task: Task, key: Key) -> Tensor:
        return torch.ones(len(task), task.space.n_features, device=task.device)


@register
@dataclass(frozen=True)
class Sobel(Explainer):
    """The edges of the input: Sobel's gradient magnitude of an image, |x_t - x_(t-1)| of a series.

    Channels are averaged: before the filter in an image, after the difference in a series, whose first step
    has none. Borders repeat the outermost pixels.
    """

    name: ClassVar[str] = "sobel"
    summary: ClassVar[str] = "control: edges of the input"
    paper: ClassVar[str] = "control"
    modalities: ClassVar[frozenset[str]] = frozenset({"image", "series"})
    control: ClassVar[bool] = True

    def why_not(self, task: Task) -> str | None:
        reason = super().why_not(task)
        if reason is None and not task.inputs.is_floating_point():
            return f"inputs are {task.inputs.dtype}; pass inputs.float()"
        return reason

    def attribute(self, task: Task, key: Key) -> Tensor:
        x = task.inputs
        return as_features(task, image_edges(x) if task.modality == "image" else jumps(x, time_axis(task)))


def image_edges(images: Tensor) -> Tensor:
    """Sobel's gradient magnitude (n, H, W) of the mean channel; of a volume, slice by slice."""
    if images.dim() == 5:
        return image_edges(images.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(images), -1))
    grey = F.pad(images.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    across = grey.new_tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    kernels = torch.stack([across, across.T])[:, None]
    return F.conv2d(grey, kernels).square().sum(1).sqrt()


def jumps(series: Tensor, axis: int) -> Tensor:
    """How far a series moves at each step (n, steps), the mean over its channels."""
    change = series.diff(dim=axis, prepend=series.narrow(axis, 0, 1)).abs()
    return change.movedim(axis, 1).flatten(2).mean(2)
