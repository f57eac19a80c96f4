"""Maps on a spatial grid: one value per pixel or step, resized and laid over the input's channels."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.functional.devices import no_autocast, on_host
from veridical.values.task import Task


def spatial_axes(task: Task) -> int:
    """How many spatial axes the input has: two for an image, three for a volume, one for a series."""
    return task.inputs.dim() - 2 if task.modality == "image" else 1


def spatial_size(task: Task) -> list[int]:
    """The input's height and width, or its number of steps."""
    if task.space.kind == "step":
        return [task.space.n_features]
    return list(task.inputs.shape[-spatial_axes(task) :])


def time_axis(task: Task) -> int:
    """The axis of the inputs that counts the steps of a series."""
    labels = task.space.labels
    if task.space.kind != "step":
        return labels.dim()
    return 1 + max(range(labels.dim()), key=lambda axis: labels.shape[axis])


def resized(maps: Tensor, size: list[int]) -> Tensor:
    """Maps (n, channels, *grid) at another size, linear between the centres of the cells."""
    # CUDA's own kernel takes longer over many small maps than a model over the inputs they are laid on
    if not on_host(maps) and torch.backends.cuda.matmul.fp32_precision == "ieee":
        return by_products(maps, size)
    return interpolated(maps, size)


def interpolated(maps: Tensor, size: list[int]) -> Tensor:
    """By torch's own operation."""
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)]
    return F.interpolate(maps, size=size, mode=mode, align_corners=False)


def by_products(maps: Tensor, size: list[int]) -> Tensor:
    """The same as a product with a matrix along each axis; floats of 16 bits are summed in 32, as there."""
    dtype = torch.promote_types(maps.dtype, torch.float32)
    axes = zip(maps.shape[2:], size, strict=True)
    across = [shares(old, new, dtype, maps.device) for old, new in axes]
    with no_autocast(maps):
        laid = maps.to(dtype) @ across[-1].mT
        if len(size) > 1:
            laid = across[-2] @ laid
        if len(size) > 2:
            laid = (laid.movedim(-3, -1) @ across[-3].mT).movedim(-1, -3)
        return laid.to(maps.dtype)


@lru_cache(maxsize=64)
def shares(old: int, new: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(new, old): what each place takes of each cell; never to be written to."""
    with torch.inference_mode(False), torch.no_grad():
        cells = torch.eye(old, dtype=dtype)[None]
        return interpolated(cells, [new])[0].mT.contiguous().to(device)


def over_input(task: Task, maps: Tensor) -> Tensor:
    """Maps (..., *size) with the input's axes, of length 1 where they share a value over channels."""
    if task.space.kind == "step":
        return maps.reshape(*maps.shape[:-1], *task.space.labels.shape)
    lead = maps.dim() - spatial_axes(task)
    across = [1] * (task.inputs.dim() - 1 - spatial_axes(task))
    return maps.reshape(*maps.shape[:lead], *across, *maps.shape[lead:])


def as_features(task: Task, maps: Tensor) -> Tensor:
    """Maps (n, *size) as a task reads them; where channels are features apart, each has the pixel's value."""
    laid = over_input(task, maps)
    shape = tuple(task.space.labels.shape[1 if task.space.per_sample else 0 :])
    return laid if tuple(laid.shape[1:]) == shape else laid.expand_as(task.inputs)
