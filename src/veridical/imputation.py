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
from veridical.multigrid import Workspace
from veridical.rng import Key
from veridical.settings import revivable

# Rows solved together on a CPU: few enough for their buffers to stay in its cache
_TOGETHER = 64


@revivable
@dataclass(frozen=True)
class NeighbourMean(Fill):
    """The mean of the kept pixels in the surrounding square of `reach`, or of all kept pixels if none is."""

    reach: int = 3
    name: ClassVar[str] = "neighbour_mean"
    looks_at_mask: ClassVar[bool] = True

    def impute(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        _images_only(self.name, x)
        kept = (~removed.expand(-1, -1, *x.shape[2:])).to(x.dtype)
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

    Direct neighbours weigh twice the diagonal ones, so the removed pixels v of a row solve the sparse system
    (D - W) v = W x_kept. `tolerance` is the residual relative to the right-hand side at which a row is done:
    by default 1e-12 in float64; in float32 0.01, and less for images larger than 60 pixels, which leaves an
    error below the noise (0.001 to 0.006 of the input's range, as root mean square).
    """

    noise: float = 0.01
    tolerance: float | None = None
    name: ClassVar[str] = "noisy_linear"
    looks_at_mask: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.noise < 0 or (self.tolerance is not None and self.tolerance <= 0):
            raise InputError(
                f"NoisyLinear needs noise >= 0 and tolerance > 0, got {self.noise} and {self.tolerance}"
            )

    def impute(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        _images_only(self.name, x)
        hole = removed.expand(-1, -1, *x.shape[2:])
        filled = solve_holes(x, hole, self.tolerance)
        if self.noise:
            filled.add_(self._draw(x, ids, key), alpha=self.noise)
        return torch.where(hole, filled, x)

    @staticmethod
    def _draw(x: Tensor, ids: Tensor, key: Key) -> Tensor:
        """One draw a sample, the same under all its masks, so that they differ in the mask alone."""
        size = x[0].numel()
        if x.is_cuda:
            return rng.normal(key / "road", ids, 0, size, x.dtype).view_as(x)
        # masks of a sample follow each other: draw once for them all
        each, row = torch.unique_consecutive(ids, return_inverse=True)
        return rng.normal(key / "road", each, 0, size, x.dtype)[row].view_as(x)


def solve_holes(
    x: Tensor, hole: Tensor, tolerance: float | None = None, iterations: int | None = None
) -> Tensor:
    """Make every pixel of the hole the weighted mean of its eight neighbours; the others stay.

    `x` is (R, C, H, W) and `hole` the same, or with one channel for all. A row with no pixel left becomes 0.
    """
    wide = x.dtype == torch.float64
    height, width = x.shape[2:]
    # the wider a hole may be, the further an error lies above its residual
    tolerance = tolerance or (1e-12 if wide else min(1e-2, 0.6 / max(height, width)))
    iterations = iterations or (200 if wide or tolerance < 1e-3 else 10)
    count = len(x) * x.shape[1]
    together = count if x.is_cuda else min(count, max(1, _TOGETHER * 28 * 28 // (height * width)))
    hole = hole.expand_as(x)
    # a block takes as long as its slowest image, and large holes are slow: like is solved with like
    order = None if together == count else hole.sum((1, 2, 3)).argsort(stable=True)
    if order is not None:
        x, hole = x.index_select(0, order), hole.index_select(0, order)
    # (R, C, H, W) as (H, W, R * C): the layout of the solver, without copying
    images = x.permute(2, 3, 0, 1).flatten(2)
    holes = hole.view(torch.uint8).permute(2, 3, 0, 1).flatten(2)
    space = Workspace(height, width, together, x)
    filled = torch.empty_like(images)
    for at in range(0, count, together):
        few = min(together, count - at)
        # a last block that is not full keeps images of the one before, which nobody reads
        space.value[..., :few] = images[..., at : at + few]
        space.hole[..., :few] = holes[..., at : at + few]
        if few < together:
            space.hole[..., few:] = 0
        filled[..., at : at + few] = space.solve(tolerance, iterations)[..., :few]
    found = filled.unflatten(2, x.shape[:2]).permute(2, 3, 0, 1)
    return found.contiguous() if order is None else torch.empty_like(x).index_copy_(0, order, found)


def _images_only(name: str, x: Tensor) -> None:
    if x.dim() != 4:
        raise NotApplicableError(f"fill '{name}' works on images (N, C, H, W), not on {tuple(x.shape)}")
