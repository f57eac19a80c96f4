"""Two further ways to optimise a picture of a class: on pixels (DV) and on Fourier coefficients (FO).

Table A.5 of the GEF paper compares them with MACO, which is `vd.gef.Maco`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count, NotNegative, Positive, Within
from veridical.core.key import Key
from veridical.gef import FeatureVisualisation, Maco
from veridical.gef.visualisation import FOR_PHOTOS, drawn_for_classes, in_colour, value_range
from veridical.values.task import Task


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
        return 0.1 * drawn_for_classes(keyed.normal, task, key / "start", tuple(task.inputs.shape[1:]))

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
        return 0.1 * drawn_for_classes(
            keyed.normal, task, key / "start", (channels, height, width // 2 + 1, 2)
        )

    def image(self, parameters: Tensor, task: Task) -> Tensor:
        height, width = task.inputs.shape[2:]
        down = torch.fft.fftfreq(height, device=task.device, dtype=parameters.dtype)[:, None]
        across = torch.fft.rfftfreq(width, device=task.device, dtype=parameters.dtype)
        frequency = (down.square() + across.square()).sqrt().clamp(min=1 / max(height, width))
        spectrum = torch.view_as_complex(parameters.contiguous()) / frequency
        plain = torch.fft.irfft2(spectrum, s=(height, width), norm="ortho")
        low, high = value_range(task)
        return low + (high - low) * torch.sigmoid(in_colour(plain, task))


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of every channel, the border repeated."""
    if sigma == 0:
        return images
    reach = max(1, round(3 * sigma))
    place = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    weights = torch.exp(-place.square() / (2 * sigma**2))
    weights = weights / weights.sum()
    flat = F.pad(images.flatten(0, 1)[:, None], (reach, reach, reach, reach), mode="replicate")
    across = F.conv2d(flat, weights[None, None, None])
    return F.conv2d(across, weights[None, None, :, None]).reshape(images.shape)


METHODS: dict[str, type[FeatureVisualisation]] = {kind.name: kind for kind in (DeepViz, Fourier, Maco)}
PHOTOS: dict[str, dict[str, Any]] = {
    "maco": FOR_PHOTOS,
    "deep_viz": {"views": 8, "smallest": 0.5, "blur": 0.8, "blur_every": 2, "weakest": 0.0},
    "fourier": {"views": 16, "smallest": 0.5},
}
"""What makes classes of photographs plain to see: many views, and smaller parts in them."""
