"""Occlusion: how much the output falls when a window over the input is filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers.base import register
from veridical.explainers.coalitions import MaskingExplainer
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class Occlusion(MaskingExplainer):
    """The fall of the explained output when a sliding window is removed, shared by the features under it.

    On images the window is `window` x `window` pixels at every `stride`, on volumes as many voxels along each
    axis, on series `window` steps; in all other spaces each feature is removed alone. A feature under several
    windows gets their mean.
    """

    window: Count = 3
    """Side of the window, in pixels or time steps."""
    stride: Count = 2
    """Pixels or time steps from one window to the next."""
    name: ClassVar[str] = "occlusion"
    summary: ClassVar[str] = "fall of the output under a sliding window"
    paper: ClassVar[str] = "Zeiler and Fergus 2014"

    def __post_init__(self) -> None:
        if self.stride > self.window:
            raise InputError(
                f"occlusion needs window >= stride so that windows cover the input, "
                f"got window {self.window}, stride {self.stride}"
            )

    def masks(self, task: Task) -> int:
        return len(self._windows(task))

    def attribute(self, task: Task, key: Key) -> Tensor:
        windows = self._windows(task)
        answers = probe(task, Given(windows), response="logit", key=self.fill_key(key), with_clean=True)
        falls = answers[:, :1] - answers[:, 1:]
        cover = windows.to(falls.dtype)
        # each window's fall is shared out over its features, then averaged over the windows of a feature
        mean = (falls @ cover) / cover.sum(0).clamp(min=1)
        return mean.to(task.inputs.dtype) if task.inputs.is_floating_point() else mean.float()

    def _windows(self, task: Task) -> Tensor:
        """(windows, V): the features each window removes."""
        kind, shape = task.space.kind, task.space.input_shape
        if kind in ("pixel", "voxel"):
            windows = torch.ones(1, 1, dtype=torch.bool, device=task.device)
            for size in shape[1:]:
                along = _spans(size, self.window, self.stride, task.device)
                windows = (windows[:, None, :, None] & along[None, :, None, :]).flatten(2).flatten(0, 1)
            return windows
        if kind == "step":
            return _spans(task.space.n_features, self.window, self.stride, task.device)
        return torch.eye(task.space.n_features, dtype=torch.bool, device=task.device)


def _spans(size: int, window: int, stride: int, device: torch.device) -> Tensor:
    """(windows, size): which places each window covers; the last ones are cut off at the edge.

    Windows start at multiples of the stride whatever the size, so padding behind an input moves none.
    """
    places = torch.arange(size, device=device)
    first = torch.arange(0, max(1, size - window + stride), stride, device=device)[:, None]
    return (places >= first) & (places < first + window)
