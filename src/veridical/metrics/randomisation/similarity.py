"""How alike two maps of the same samples are."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional import has_spread, pearson, rms_normalise, spearman, ssim
from veridical.space import Space
from veridical.task import Task

Similarity = Literal["spearman", "pearson", "ssim"]
_WINDOW = 7


def check_similarity(kind: str) -> None:
    """Refuse a similarity that does not exist."""
    if kind not in ("spearman", "pearson", "ssim"):
        raise InputError(f"similarity is 'spearman', 'pearson' or 'ssim', got {kind!r}")


def why_not_similar(kind: Similarity, task: Task) -> str | None:
    """Why maps of this task cannot be compared in this way, or None if they can."""
    if kind != "ssim":
        return None
    if task.modality != "image":
        return f"similarity='ssim' compares images, this task is {task.modality}"
    height, width = task.inputs.shape[-2:]
    if min(height, width) < _WINDOW:
        return f"similarity='ssim' looks at windows of {_WINDOW} pixels, these images are {height} x {width}"
    return None


def similarity(kind: Similarity, a: Tensor, b: Tensor, space: Space, absolute: bool = False) -> Tensor:
    """Similarity of maps (N, V) over valid features; NaN where a map has no spread.

    "ssim" lays the maps, each divided by its root mean square, back over the image and takes the mean over
    channels where these are features of their own.
    """
    if absolute:
        a, b = a.abs(), b.abs()
    if kind == "spearman":
        return spearman(a, b, where=space.valid)
    if kind == "pearson":
        return pearson(a, b, where=space.valid)
    images = [space.expand(rms_normalise(m, where=space.valid)) for m in (a, b)]
    height, width = space.input_shape[-2:]
    full = [image.expand(*image.shape[:-2], height, width) for image in images]
    alike = ssim(*full, size=_WINDOW).flatten(1).mean(-1)
    spread = has_spread(a, where=space.valid) & has_spread(b, where=space.valid)
    return torch.where(spread, alike, torch.nan)
