"""Controls: maps that know nothing of the model, or only its outputs; no honest metric should prefer them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count
from veridical.core.facts import train_fact
from veridical.core.key import Key
from veridical.explainers.base import FILL_KEY, Explainer, register
from veridical.explainers.layout import as_features, asks_prompts, lengths, time_axis
from veridical.models.context import Context
from veridical.perturb.fills import Backgrounds
from veridical.values.task import Task


@dataclass(frozen=True)
class _Control(Explainer):
    """Base of the controls."""

    paper: ClassVar[str] = "control"
    control: ClassVar[bool] = True


@register
@dataclass(frozen=True)
class Random(_Control):
    """Uniform noise on [0, 1), drawn anew for every sample and key (RAN in the GEF paper)."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "control: uniform noise"
    stochastic: ClassVar[bool] = True

    def attribute(self, task: Task, context: Context) -> Tensor:
        return keyed.uniform(context.key, task.draw_ids, 0, task.space.n_features)


@register
@dataclass(frozen=True)
class RandomK(_Control):
    """K features drawn at random are 1, all others 0 (RAN-K in the GEF paper).

    A sample with fewer than K features has 1 in all of them.
    """

    k: Count = 5
    """Features that are 1."""
    name: ClassVar[str] = "random_k"
    summary: ClassVar[str] = "control: K random features"
    stochastic: ClassVar[bool] = True

    def attribute(self, task: Task, context: Context) -> Tensor:
        space = task.space
        ranks = keyed.random_ranks(context.key, task.draw_ids, 0, space.n_features, space.valid)
        return (ranks < self.k).to(torch.get_default_dtype())


@register
@dataclass(frozen=True)
class Constant(_Control):
    """The same relevance, 1, for every feature: a map without any information."""

    name: ClassVar[str] = "constant"
    summary: ClassVar[str] = "control: every feature alike"

    def attribute(self, task: Task, context: Context) -> Tensor:
        return torch.ones(len(task), task.space.n_features, device=task.device)


@register
@dataclass(frozen=True)
class Sobel(_Control):
    """The edges of the input: Sobel's gradient magnitude of an image, |x_t - x_(t-1)| of a series.

    Channels are averaged: before the filter in an image, after the difference in a series, whose first step
    has none. Borders repeat the outermost pixels.
    """

    name: ClassVar[str] = "sobel"
    summary: ClassVar[str] = "control: edges of the input"
    modalities: ClassVar[frozenset[str]] = frozenset({"image", "series"})

    def inapplicable_reason(self, task: Task) -> str | None:
        reason = super().inapplicable_reason(task)
        if reason is None and not task.inputs.is_floating_point():
            return f"inputs are {task.inputs.dtype}; pass inputs.float()"
        return reason

    def attribute(self, task: Task, context: Context) -> Tensor:
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


@register
@dataclass(frozen=True)
class InputMagnitude(_Control):
    """How far each feature lies from its fill, in standard deviations of the reference rows; never the model.

    |x - fill| / sd, summed over the elements of a feature; without reference rows, or where they do not vary,
    sd is 1. Tokens have no magnitude: there it is how rare a token is among the reference rows,
    -log((count + 1) / (tokens + 1)), and without such rows its number, since vocabularies list common
    tokens first. The size of a unit of a prompt is its length in tokens.
    """

    name: ClassVar[str] = "input_magnitude"
    summary: ClassVar[str] = "control: how far the input is from its fill"

    def attribute(self, task: Task, context: Context) -> Tensor:
        if task.modality == "text" and not task.inputs.is_floating_point():
            return rarity(task)
        if asks_prompts(task):
            return lengths(task)
        if task.fill.looks_at_mask:
            behind = task.inputs.new_zeros(()) if task.train is None else task.train.double().nanmean(0)
        else:
            filled = Backgrounds(task, task.fill, FILL_KEY)
            rows, weights = filled(slice(0, len(task))).double(), filled.weights
            behind = rows.nanmean(1) if weights is None else _known_mean(rows, weights)
        far = (task.inputs.double() - behind).abs() / spread(task)
        return task.space.pool(far.nan_to_num(nan=0.0), "sum")  # what is missing has no size


def _known_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of rows (B, R, ...) along R, of what is not missing."""
    share = weights.to(rows).view(1, -1, *[1] * (rows.dim() - 2)) * ~rows.isnan()
    return (share * rows.nan_to_num(0.0)).sum(1) / share.sum(1)


def spread(task: Task) -> Tensor:
    """The standard deviation of each element over the reference rows, 1 where there is none."""
    if task.train is None or len(task.train) < 2:
        return torch.ones((), dtype=torch.float64, device=task.device)
    known = _deviation(task)
    return torch.where(known > 0, known, 1.0)


@train_fact
def _deviation(task: Task) -> Tensor:
    """The standard deviation over the reference rows, of values that are not missing."""
    assert task.train is not None
    rows = task.train.double()
    return (rows - rows.nanmean(0)).square().nanmean(0).sqrt()


def rarity(task: Task) -> Tensor:
    """How rare each token is, (N, V)."""
    tokens = task.inputs.flatten(1).long()
    if task.train is None:
        return tokens.double()
    counts = _token_counts(task)
    known = torch.where(tokens < len(counts), counts[tokens.clamp(0, len(counts) - 1)], 0)
    return -((known + 1) / (task.train.numel() + 1)).double().log()


@train_fact
def _token_counts(task: Task) -> Tensor:
    """How often the reference rows have each token."""
    assert task.train is not None
    return task.train.flatten().long().clamp(min=0).bincount()


@register
@dataclass(frozen=True)
class MovingNoise(_Control):
    """Noise of each sample plus a random projection of the model's outputs: it moves with the model.

    It follows the outputs and knows no feature, so metrics that watch a map move, as GEF does, like it.
    """

    name: ClassVar[str] = "moving_noise"
    summary: ClassVar[str] = "control: noise that moves with the outputs"

    def attribute(self, task: Task, context: Context) -> Tensor:
        size = task.space.n_features
        # the same noise for every perturbed model and under every seed: only the model moves it
        own = Key(0) / self.name
        noise = keyed.normal(own / "noise", task.draw_ids, 0, size)
        towards = keyed.normal(own / "towards", torch.arange(task.n_outputs, device=task.device), 0, size)
        return noise + task.respond(task.outputs, "logit").double() @ towards.double()
