"""Pictures of what a class looks like to a model: inputs optimised to raise its logit.

Each method says how an image is made of its parameters and how they take a step; the ascent is written once.
All randomness is keyed by the class, and classes do not touch one another, so a batch of classes gives what
they give one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count, NotNegative, PartOf, Positive, Within
from veridical.core.key import Key
from veridical.errors import NotApplicableError
from veridical.explainers import Explainer
from veridical.explainers.base import selected
from veridical.gef.picture_statistics import blurred, in_colour, mean_magnitude, value_range
from veridical.models.predictor import call
from veridical.values.task import Task


@dataclass(frozen=True)
class FeatureVisualisation(Explainer):
    """Base of the visualisers: `steps` of ascent on the logit of a class, from keyed noise."""

    steps: Count = 100
    """Steps of ascent."""
    rate: Positive = 0.05
    """Adam's step size."""
    views: Count = 4
    """Random crops per picture and step, over which the gradient is averaged."""
    smallest: PartOf = 0.8
    """The smallest share of a side that a view shows at full size; 1 only shifts."""
    modalities: ClassVar[frozenset[str]] = frozenset({"image"})
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})
    stochastic: ClassVar[bool] = True
    one_key: ClassVar[bool] = True

    def why_not(self, task: Task) -> str | None:
        if task.members is None:
            return (
                "it pictures classes, not inputs; give it vd.gef.class_task(task), or call vd.gef.visualise"
            )
        if len(task.inputs.shape) != 4:
            return "it pictures classes of image models"
        return None if task.differentiable else "it needs gradients and the model is not a torch function"

    def rows_per_sample(self, task: Task) -> int:
        return self.views

    def start(self, task: Task, key: Key) -> Tensor:
        """The parameters before the first step (n, ...)."""
        raise NotApplicableError(f"visualiser '{self.name}' does not say where it starts")

    def image(self, parameters: Tensor, task: Task) -> Tensor:
        """The images (n, C, H, W) that these parameters stand for."""
        return parameters

    def tidied(self, parameters: Tensor, gradient: Tensor, step: int) -> Tensor:
        """The parameters after a step, pulled towards plausible pictures."""
        return parameters

    def attribute(self, task: Task, key: Key) -> Tensor:
        parameters = self.start(task, key)
        first, second = torch.zeros_like(parameters), torch.zeros_like(parameters)
        for step in range(self.steps):
            parameters = parameters.detach().requires_grad_(True)
            seen = seen_from(
                self.image(parameters, task), task, self.views, key / "view" / step, self.smallest
            )
            outputs = call(task.predictor.view, seen)
            logits = selected(outputs, task.targets.repeat_interleave(self.views))
            (gradient,) = torch.autograd.grad(logits.sum() / self.views, parameters)
            with torch.no_grad():
                # Adam, so that the rate means the same whatever the model's scale
                first = 0.9 * first + 0.1 * gradient
                second = 0.999 * second + 0.001 * gradient.square()
                scale = (second / (1 - 0.999 ** (step + 1))).sqrt() + 1e-12
                moved = parameters + self.rate * first / (1 - 0.9 ** (step + 1)) / scale
                parameters = self.tidied(moved, gradient, step)
        with torch.no_grad():
            return self.image(parameters, task)


@dataclass(frozen=True)
class DeepViz(FeatureVisualisation):
    """Ascent on the pixels, held plausible by decay, blur and the removal of weak pixels (DV).

    Every `blur_every` steps the picture is blurred, and the pixels of the smallest norm and of the smallest
    contribution |x . gradient| (`weakest` of each) are set to the middle of the value range.
    """

    rate: Positive = 0.03
    """Adam's step size, on pixels from -1 to 1."""
    views: Count = 1
    """Random crops per picture and step, over which the gradient is averaged."""
    decay: Annotated[float, Within(0, 1, without=(1,))] = 1e-3
    """Share of every pixel that is lost per step."""
    blur_every: Count = 4
    """Steps from one blur and removal to the next."""
    blur: NotNegative = 0.6
    """Width of the blur, in pixels."""
    weakest: Annotated[float, Within(0, 1, without=(1,))] = 0.05
    """Share of the pixels that is removed by each of the two criteria."""
    name: ClassVar[str] = "deep_viz"
    summary: ClassVar[str] = "pixels optimised for a class, with decay, blur and weak pixels removed"
    paper: ClassVar[str] = "Yosinski et al. 2015"

    def start(self, task: Task, key: Key) -> Tensor:
        return 0.1 * _noise(task, key / "start", tuple(task.inputs.shape[1:]))

    def image(self, parameters: Tensor, task: Task) -> Tensor:
        low, high = value_range(task)
        return (low + high) / 2 + (high - low) / 2 * parameters.clamp(-1, 1)

    def tidied(self, parameters: Tensor, gradient: Tensor, step: int) -> Tensor:
        parameters = (parameters * (1 - self.decay)).clamp(-1, 1)
        # the last picture is left sharp
        if (step + 1) % self.blur_every or step + 1 == self.steps:
            return parameters
        parameters = blurred(parameters, self.blur)
        for strength in (parameters.norm(dim=1), (parameters * gradient).sum(1).abs()):
            line = strength.flatten(1).quantile(self.weakest, dim=1)[:, None, None]
            parameters = parameters * (strength >= line)[:, None]
        return parameters


@dataclass(frozen=True)
class Fourier(FeatureVisualisation):
    """Ascent on the Fourier coefficients, each weighted by one over its frequency (FO).

    Channels go together as they do in the reference rows.
    """

    name: ClassVar[str] = "fourier"
    summary: ClassVar[str] = "Fourier coefficients optimised for a class"
    paper: ClassVar[str] = "Olah et al. 2017"

    def start(self, task: Task, key: Key) -> Tensor:
        channels, height, width = task.inputs.shape[1:]
        return 0.1 * _noise(task, key / "start", (channels, height, width // 2 + 1, 2))

    def image(self, parameters: Tensor, task: Task) -> Tensor:
        height, width = task.inputs.shape[2:]
        down = torch.fft.fftfreq(height, device=task.device, dtype=parameters.dtype)[:, None]
        across = torch.fft.rfftfreq(width, device=task.device, dtype=parameters.dtype)
        frequency = (down.square() + across.square()).sqrt().clamp(min=1 / max(height, width))
        spectrum = torch.view_as_complex(parameters.contiguous()) / frequency
        plain = torch.fft.irfft2(spectrum, s=(height, width), norm="ortho")
        low, high = value_range(task)
        return low + (high - low) * torch.sigmoid(in_colour(plain, task))


@dataclass(frozen=True)
class Maco(FeatureVisualisation):
    """Ascent on the phases only; the magnitudes are those of the mean spectrum of the reference rows (MACO).

    Magnitudes are those of colours made independent, and the picture has the colours put together again; it
    is brought to the value range by a sigmoid of its standardised values.
    """

    rate: Positive = 0.1
    """Adam's step size, on phases in radians."""
    name: ClassVar[str] = "maco"
    summary: ClassVar[str] = "phases optimised for a class under the magnitudes of real images"
    paper: ClassVar[str] = "Fel et al. 2023"

    def start(self, task: Task, key: Key) -> Tensor:
        channels, height, width = task.inputs.shape[1:]
        return torch.pi * (2 * _uniform(task, key / "start", (channels, height, width // 2 + 1)) - 1)

    def image(self, parameters: Tensor, task: Task) -> Tensor:
        height, width = task.inputs.shape[2:]
        magnitude = mean_magnitude(task)
        plain = torch.fft.irfft2(torch.polar(magnitude.expand_as(parameters), parameters), s=(height, width))
        plain = in_colour(plain, task)
        middle = plain.mean((1, 2, 3), keepdim=True)
        spread = plain.std((1, 2, 3), keepdim=True, correction=0) + 1e-6
        low, high = value_range(task)
        return low + (high - low) * torch.sigmoid((plain - middle) / spread)


METHODS: dict[str, type[FeatureVisualisation]] = {kind.name: kind for kind in (DeepViz, Fourier, Maco)}


def seen_from(images: Tensor, task: Task, views: int, key: Key, smallest: float = 0.8) -> Tensor:
    """Each image `views` times, each a part of it at full size, keyed by its class.

    A part has between `smallest` and 1 of the image's sides and lies anywhere in it, or a little beyond its
    edge. A single view is the image itself.
    """
    if views == 1:
        return images
    drawn = keyed.uniform(key, task.draw_ids, torch.arange(views, device=task.device), 3, images.dtype)
    shrink = 1 - (1 - smallest) * drawn[..., 0]
    shift = (drawn[..., 1:] * 2 - 1) * (1 - shrink + 0.05)[..., None]
    theta = torch.zeros(*drawn.shape[:2], 2, 3, dtype=images.dtype, device=images.device)
    theta[..., 0, 0] = theta[..., 1, 1] = shrink
    theta[..., 2] = shift
    repeated = images.repeat_interleave(views, 0)
    grid = F.affine_grid(theta.flatten(0, 1), list(repeated.shape), align_corners=False)
    return F.grid_sample(repeated, grid, padding_mode="reflection", align_corners=False)


def _noise(task: Task, key: Key, shape: tuple[int, ...]) -> Tensor:
    size = torch.Size(shape).numel()
    return keyed.normal(key, task.draw_ids, 0, size, task.inputs.dtype).reshape(-1, *shape)


def _uniform(task: Task, key: Key, shape: tuple[int, ...]) -> Tensor:
    size = torch.Size(shape).numel()
    return keyed.uniform(key, task.draw_ids, 0, size, task.inputs.dtype).reshape(-1, *shape)
