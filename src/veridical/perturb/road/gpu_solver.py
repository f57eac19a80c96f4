"""`solver` for a GPU: the same grids, cycle and conjugate gradients, in few launches of kernels of our own.

Images are (images, height, width) as they come, and a mask serves all channels of its row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.perturb.road.kernel import Steps
from veridical.perturb.road.solver import COARSEST, SETTLING, SMALLEST_GRID


@dataclass
class _Grid:
    known: Tensor
    """What is known of each image, zero in its hole."""
    hole: Tensor
    """1 where a pixel is missing, for every mask."""


class GpuSolver:
    """Fills the holes of `x` (rows, channels, height, width); `hole` has as many channels, or one."""

    def __init__(self, x: Tensor, hole: Tensor, steps: Steps) -> None:
        self._steps = steps
        self._share = x.shape[1] // hole.shape[1]
        self._shape = x.shape
        holes = hole.flatten(0, 1).contiguous()
        known = x.masked_fill(hole, 0.0).flatten(0, 1).contiguous()
        self._grids = [_Grid(known, holes.to(torch.uint8))]
        while min(known.shape[1:]) > SMALLEST_GRID:
            kept = _folded((~holes).to(x.dtype))
            known = _folded(known).div_(self._each(kept.clamp(min=1)))
            holes = kept == 0
            self._grids.append(_Grid(known, holes.to(torch.uint8)))

    def solve(self, iterations: int) -> Tensor:
        """The images with their holes filled after so many iterations; zeros where nothing is known."""
        grid = self._grids[0]
        value = self._guess()
        rest = self._run("residual", value, grid.hole)
        direction: Tensor | None = None
        along = rest
        tiny = torch.finfo(value.dtype).tiny
        for step in range(iterations):
            better = self._cycle(0, rest)
            renewed = _dot(rest, better)
            if direction is None:
                direction = better
            else:
                direction = torch.addcmul(better, direction, renewed / along.clamp(min=tiny))
            along = renewed
            moved = self._run("residual", direction, grid.hole)
            length = along / -_dot(direction, moved).clamp_(max=-tiny)
            value.addcmul_(direction, length)
            if step < iterations - 1:
                rest.addcmul_(moved, length)
        return value.view(self._shape)

    def _run(self, name: str, first: Tensor, *others: Tensor, flag: int | None = None) -> Tensor:
        out = torch.empty_like(first)
        more = () if flag is None else (flag,)
        self._steps(name, (first, *others, out), self._share, *more)
        return out

    def _each(self, of_masks: Tensor) -> Tensor:
        """What is one per mask, for every image."""
        return of_masks if self._share == 1 else of_masks.repeat_interleave(self._share, 0)

    def _guess(self) -> Tensor:
        """A first answer: from coarse to fine, smoothed a little on each grid."""
        last = self._grids[-1]
        hole = self._each(last.hole)
        count = (hole == 0).sum((1, 2), keepdim=True).clamp_(min=1)
        value = last.known.addcmul(hole.to(last.known.dtype), last.known.sum((1, 2), keepdim=True) / count)
        for _ in range(2 * SETTLING):
            value = self._run("settle", value, value, last.known, last.hole, flag=0)
        for grid in reversed(self._grids[:-1]):
            coarse = value
            value = self._run("settle", grid.known, coarse, grid.known, grid.hole, flag=1)
            for _ in range(SETTLING - 1):
                value = self._run("settle", value, coarse, grid.known, grid.hole, flag=0)
        return value

    def _cycle(self, level: int, right: Tensor) -> Tensor:
        """An approximate solution for `right`: smooth, correct from the coarser grid, smooth again."""
        hole = self._grids[level].hole
        value, rest = torch.empty_like(right), torch.empty_like(right)
        self._steps("begin", (right, value, rest), self._share)
        if level == len(self._grids) - 1:
            for _ in range(COARSEST):
                value = self._run("relax", value, value, right, hole, flag=0)
            return value
        # the coarse hole leaves out every block that is not missing whole
        coarse = _folded(rest).mul_(self._each(self._grids[level + 1].hole))
        return self._run("relax", value, self._cycle(level + 1, coarse), right, hole, flag=1)


def _folded(values: Tensor) -> Tensor:
    """Sums over blocks of two by two; a last odd row or column stands alone."""
    return F.avg_pool2d(values[:, None], 2, ceil_mode=True, divisor_override=1)[:, 0]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2), keepdim=True)
