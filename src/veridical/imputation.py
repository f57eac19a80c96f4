"""Fills that look at the mask: a removed pixel takes its value from what is left around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical import rng
from veridical.errors import InputError, NotApplicableError
from veridical.fill import Fill
from veridical.rng import Key
from veridical.settings import revivable

# ROAD's weights: a direct neighbour counts twice a diagonal one
_WEIGHTS = ((1.0, 2.0, 1.0), (2.0, 0.0, 2.0), (1.0, 2.0, 1.0))


@revivable
@dataclass(frozen=True)
class NeighbourMean(Fill):
    """The mean of the kept pixels in the surrounding square of `reach`, or of all kept pixels if none is."""

    reach: int = 3
    name: ClassVar[str] = "neighbour_mean"
    looks_at_mask: ClassVar[bool] = True

    def impute(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        _images_only(self.name, x)
        kept = (~removed.expand(-1, 1, *x.shape[2:])).to(x.dtype)
        size = 2 * self.reach + 1
        near = F.avg_pool2d(x * kept, size, 1, self.reach) * size**2
        count = F.avg_pool2d(kept, size, 1, self.reach) * size**2
        whole = (x * kept).sum((2, 3), keepdim=True) / kept.sum((2, 3), keepdim=True).clamp(min=1)
        local = torch.where(count > 0.5, near / count.clamp(min=0.5), whole)
        return torch.where(removed, local, x)


@revivable
@dataclass(frozen=True)
class NoisyLinear(Fill):
    """ROAD's noisy linear imputation: each removed pixel is the weighted mean of its neighbours, plus noise.

    The removed pixels of a row solve (D - W) v = W_kept x, a sparse symmetric system; all rows are solved
    together by conjugate gradients, so no matrix is ever formed.
    """

    noise: float = 0.01
    tolerance: float | None = None
    max_iterations: int = 1000
    name: ClassVar[str] = "noisy_linear"
    looks_at_mask: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.noise < 0 or (self.tolerance is not None and self.tolerance <= 0):
            raise InputError("NoisyLinear needs noise >= 0 and tolerance > 0")

    def impute(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        _images_only(self.name, x)
        hole = removed.expand(-1, 1, *x.shape[2:])
        filled = solve_holes(x, hole, self.tolerance, self.max_iterations)
        if self.noise:
            share = rng.normal(key / "road", ids, 0, x[0].numel(), x.dtype).reshape(x.shape)
            filled = filled + self.noise * share
        return torch.where(hole, filled, x)


def solve_holes(
    x: Tensor, hole: Tensor, tolerance: float | None = None, max_iterations: int = 1000
) -> Tensor:
    """Make every pixel of the hole the weighted mean of its eight neighbours; the others stay.

    `tolerance` is relative to the right-hand side: by default 1e-4, or 1e-11 in float64.
    """
    if tolerance is None:
        tolerance = 1e-11 if x.dtype == torch.float64 else 1e-4
    channels = x.shape[1]
    kernel = torch.tensor(_WEIGHTS, dtype=x.dtype, device=x.device)[None, None]
    ones = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)
    degree = F.conv2d(ones, kernel, padding=1)
    inside = hole.to(x.dtype)

    def neighbours(v: Tensor) -> Tensor:
        return F.conv2d(v, kernel.expand(channels, 1, 3, 3), padding=1, groups=channels)

    def laplace(v: Tensor) -> Tensor:
        return inside * (degree * v - neighbours(v))

    right = inside * neighbours(x * (1 - inside))
    # where nothing is kept the system is singular and its smallest solution, zero, is as good as any
    value = inside * right / degree
    rest = right - laplace(value)
    step = rest / degree
    direction = step
    energy = (rest * step).sum((2, 3), keepdim=True)
    goal = tolerance**2 * (right * right / degree).sum((2, 3), keepdim=True)
    for iteration in range(max_iterations):
        # a row that has arrived stops there, so that its value does not depend on the rows beside it
        active = energy > goal
        moved = laplace(direction)
        along = (direction * moved).sum((2, 3), keepdim=True)
        length = torch.where(active, energy / along.clamp(min=torch.finfo(x.dtype).tiny), 0.0)
        value = value + length * direction
        rest = rest - length * moved
        step = rest / degree
        renewed = (rest * step).sum((2, 3), keepdim=True)
        # asking whether all rows are done waits for the device, so it is asked rarely
        renewed = torch.where(active, renewed, energy)
        if iteration % 8 == 7 and not bool((renewed > goal).any()):
            break
        direction = step + renewed / energy.clamp(min=torch.finfo(x.dtype).tiny) * direction
        energy = renewed
    return value


def _images_only(name: str, x: Tensor) -> None:
    if x.dim() != 4:
        raise NotApplicableError(f"fill '{name}' works on images (N, C, H, W), not on {tuple(x.shape)}")
