"""How alike two maps of the same samples are."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from veridical.functional import centred_ranks, cosine, has_spread, pearson, rms_normalise, ssim
from veridical.values.space import Space
from veridical.values.task import Task

Similarity = Literal["spearman", "pearson", "ssim"]
_WINDOW = 7


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


def comparable(kind: Similarity, maps: Tensor, space: Space, absolute: bool = False) -> Tensor:
    """Maps (..., N, V) made ready for `compare`: done once for a map that is compared with many others.

    Centred ranks for "spearman", the values for "pearson", values over their root mean square for "ssim".
    """
    maps = maps.abs() if absolute else maps
    if kind == "spearman":
        return centred_ranks(maps, where=space.valid)
    return maps if kind == "pearson" else rms_normalise(maps, where=space.valid)


def compare(kind: Similarity, a: Tensor, b: Tensor, space: Space) -> Tensor:
    """Similarity of comparable maps (N, V) over valid features (N,); NaN where a map has no spread.

    Of several maps b (K, N, V) that of each (K, N). "ssim" lays the maps back over the image and takes the
    mean over channels where these are features of their own.
    """
    if kind == "spearman":
        return cosine(a, b)
    if b.dim() > a.dim():
        return torch.stack([compare(kind, a, each, space) for each in b])
    if kind == "pearson":
        return pearson(a, b, where=space.valid)
    height, width = space.input_shape[-2:]
    images = [space.expand(m) for m in (a, b)]
    full = [image.expand(*image.shape[:-2], height, width) for image in images]
    alike = ssim(*full, size=_WINDOW).flatten(1).mean(-1)
    spread = has_spread(a, where=space.valid) & has_spread(b, where=space.valid)
    return torch.where(spread, alike, torch.nan)
