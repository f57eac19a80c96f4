"""Noise on inputs in units of their range, for the input perturbation test."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.explainers.grid import time_axis
from veridical.metrics.input_noise import touched, uniform_noise
from veridical.values.task import Task


def unit_range(task: Task) -> tuple[Tensor, Tensor]:
    """The smallest and largest value of every unit, shaped to broadcast over inputs.

    From the reference rows, or the inputs where there are none. What shares a unit shares a range: the
    elements of one channel of an image or a series, of one dimension of an embedding; a column of a table
    has its own.
    """
    rows = task.inputs if task.train is None else task.train
    there = touched(task) if task.train is None else torch.ones_like(rows, dtype=torch.bool)
    axes = _sharing(task)
    low = torch.where(there, rows, torch.inf).amin(axes, keepdim=True)
    high = torch.where(there, rows, -torch.inf).amax(axes, keepdim=True)
    return low, high


def _sharing(task: Task) -> tuple[int, ...]:
    every = tuple(range(task.inputs.dim()))
    if task.modality == "image":
        return tuple(axis for axis in every if axis != 1)
    if task.modality == "text":
        return every[:-1]
    if task.modality == "series":
        return (0, time_axis(task))
    return (0,)


def noisy_inputs(task: Task, amount: float, key: Key, published: bool = False) -> Tensor:
    """x + U(-a, a), a in units of the range and clipped to it; padding stays as it is.

    A value that lies outside the range of the reference rows is not pulled into it. `published` adds noise in
    the inputs' own units and clips at their smallest value only.
    """
    noise = amount * uniform_noise(task, key / "input", 0)
    if published:
        return torch.maximum(task.inputs + noise, task.inputs.amin())
    low, high = unit_range(task)
    moved = task.inputs + noise * (high - low)
    bounded = moved.clamp(torch.minimum(low, task.inputs), torch.maximum(high, task.inputs))
    return torch.where(touched(task), bounded, task.inputs)
