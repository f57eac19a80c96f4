"""What the pictures of a task are like: range, spectrum, how channels go together; and a blur."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.values.task import Task


def value_range(task: Task) -> tuple[Tensor, Tensor]:
    """The smallest and largest value of each channel in the reference rows (C, 1, 1)."""

    def find() -> tuple[Tensor, Tensor]:
        rows = _reference_rows(task).movedim(1, 0).flatten(1)
        return rows.amin(1)[:, None, None], rows.amax(1)[:, None, None]

    found: tuple[Tensor, Tensor] = task.from_train("value range by channel", find)
    return found


def mean_magnitude(task: Task) -> Tensor:
    """The mean over the reference rows of the magnitude of their spectra (C, H, W // 2 + 1).

    Of channels made independent first, as `in_colour` puts them together again.
    """

    def find() -> Tensor:
        rows = _reference_rows(task)
        apart = torch.einsum("dc,nchw->ndhw", torch.linalg.inv(colours(task)), rows)
        return torch.fft.rfft2(apart).abs().mean(0)

    found: Tensor = task.from_train("mean magnitude of spectra", find)
    return found


def colours(task: Task) -> Tensor:
    """The square root (C, C) of the covariance of the channels over the reference rows, its largest row 1.

    Neighbouring values of real images differ little between channels; a picture whose channels are
    optimised apart is a rainbow. With one channel there is nothing to put together.
    """

    def find() -> Tensor:
        rows = _reference_rows(task)
        flat = rows.movedim(1, 0).flatten(1).double()
        apart = flat - flat.mean(1, keepdim=True)
        values, vectors = torch.linalg.eigh(apart @ apart.mT / apart.shape[1])
        root = vectors * values.clamp(min=1e-6 * float(values.max()) + 1e-12).sqrt()
        return (root / root.norm(dim=1).max()).to(rows.dtype)

    if task.inputs.shape[1] == 1:
        return torch.ones(1, 1, dtype=task.inputs.dtype, device=task.device)
    found: Tensor = task.from_train("colours", find)
    return found


def in_colour(images: Tensor, task: Task) -> Tensor:
    """Images (n, C, H, W) of independent channels with the channels put together as in real ones."""
    return images if images.shape[1] == 1 else torch.einsum("cd,ndhw->nchw", colours(task), images)


def _reference_rows(task: Task) -> Tensor:
    if task.train is not None:
        return task.train[:1024]
    return task.inputs if task.members is None else task.members.inputs


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of every channel, the border repeated."""
    if sigma == 0:
        return images
    reach = max(1, round(3 * sigma))
    place = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    weights = torch.exp(-place.square() / (2 * sigma**2))
    weights = weights / weights.sum()
    flat = images.flatten(0, 1)[:, None]
    flat = F.conv2d(F.pad(flat, (reach, reach, 0, 0), mode="replicate"), weights[None, None, None])
    flat = F.conv2d(F.pad(flat, (0, 0, reach, reach), mode="replicate"), weights[None, None, :, None])
    return flat.reshape(images.shape)
