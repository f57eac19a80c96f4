"""ROAD's noisy linear imputation: every missing pixel becomes the weighted mean of its eight neighbours.

The missing pixels v of an image solve (D - W) v = W x_kept, a sparse symmetric system with its own shape for
every mask. All images are solved together by conjugate gradients, preconditioned by one multigrid cycle:
errors that reach far die out on coarser grids, so a few iterations do for holes of any size. They start from
a solution carried from the coarsest grid to the finest, where a pixel is known if any of its four finer ones
is. No matrix is formed: neighbours are shifted sums, on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

MIDDLE = 4.0
"""The weights 1 2 1 / 2 . 2 / 1 2 1 are a product of (1 2 1) with itself, less this in the middle."""
NEIGHBOURS = 12.0
"""The sum of the weights of a pixel's neighbours, away from the edges."""
COARSE_WEIGHT = 0.9
"""A coarse grid's correction is damped: its pixels are blocks, not linear pieces."""
SMALLEST_GRID = 7
SMOOTHING = 3
"""Smoothing steps on every grid for the first solution."""
COARSEST = 6
"""Smoothing steps on the smallest grid, where they cost little."""
QUICK, SMALL_IMAGE = 2, 32
"""Iterations in float32 for images of so many pixels a side, one more for larger ones: below the noise."""
MOST_ITERATIONS = 200
TOLERANCE = 1e-12
"""Root mean square error in float64, as a share of the range of an image's values (0 among them)."""


class _Grid:
    """One resolution: what is known of each image, where it has a hole, and the steps that use neighbours."""

    def __init__(self, known: Tensor, hole: Tensor) -> None:
        self.known, self.hole = known, hole
        self.degree = neighbour_weights(known) + MIDDLE
        self._share = hole / self.degree

    def residual(self, value: Tensor) -> Tensor:
        """(W - D) of `value` inside the hole, zero outside."""
        return torch.addcmul(blurred(value), self.degree, value, value=-1).mul_(self.hole)

    def settle(self, value: Tensor) -> Tensor:
        """Bring every missing pixel nearer to the mean of its neighbours."""
        return torch.addcmul(self.known, blurred(value), self._share)

    def relax(self, value: Tensor, right: Tensor) -> Tensor:
        """Smooth a correction once: Jacobi's step, damped by 3/4."""
        return blurred(value).add_(right).mul_(self._share)

    def unfolded(self, coarse: Tensor) -> Tensor:
        """Each coarse pixel for its block of four."""
        doubled = coarse[:, None, :, None].expand(-1, 2, -1, 2, -1).flatten(0, 1).flatten(1, 2)
        return doubled[: self.known.shape[0], : self.known.shape[1]]


def solve_holes(x: Tensor, hole: Tensor) -> Tensor:
    """Make every pixel of the hole the weighted mean of its eight neighbours; the others stay.

    Parameters
    ----------
    x : Tensor
        Images (R, C, H, W).
    hole : Tensor
        Where pixels are missing: of the same shape, or with one channel for all.

    Returns
    -------
    Tensor
        The filled images. An image with no pixel left becomes 0, the smallest of its many solutions. In
        float64 an image is done when its missing pixels differ from the means of their neighbours by less
        than `TOLERANCE`; other precisions take two iterations, three above 32 pixels a side.
    """
    height, width = x.shape[2:]
    # images lie along the last axis, where shifted sums run over contiguous memory
    known = x.masked_fill(hole, 0.0).reshape(-1, height, width).permute(1, 2, 0).contiguous()
    holes = hole.expand_as(x).reshape(-1, height, width).permute(1, 2, 0).contiguous()
    filled = _solve(_grids(known, holes))
    return filled.permute(2, 0, 1).reshape(x.shape)


def _solve(grids: list[_Grid]) -> Tensor:
    """Conjugate gradients from the first solution."""
    grid = grids[0]
    tiny = torch.finfo(grid.known.dtype).tiny
    goal, iterations = None, QUICK + (max(grid.known.shape[:2]) > SMALL_IMAGE)
    if grid.known.dtype == torch.float64:
        spread = grid.known.amax((0, 1)) - grid.known.amin((0, 1))
        goal = (spread * (TOLERANCE * NEIGHBOURS)).square() * grid.hole.sum((0, 1))
        iterations = MOST_ITERATIONS
    value = _first_solution(grids)
    rest = grid.residual(value)
    direction, along = torch.zeros_like(value), value.new_ones(value.shape[-1])
    for _ in range(iterations):
        active = None if goal is None else _dot(rest, rest) > goal
        if active is not None and not bool(active.any()):
            break
        better = _cycle(grids, 0, rest)
        renewed = _dot(rest, better)
        direction = torch.addcmul(better, direction, renewed / along.clamp(min=tiny))
        along = renewed
        moved = grid.residual(direction)
        length = along / -_dot(direction, moved).clamp(max=-tiny)
        if active is not None:  # a solved image stays as it is: it does not depend on the images beside it
            length = length * active
        value = torch.addcmul(value, direction, length)
        rest = torch.addcmul(rest, moved, length)
    return value


def blurred(x: Tensor) -> Tensor:
    """The (1 2 1) x (1 2 1) sums of images (H, W, B), with nothing beyond their edges."""
    return _sums(_sums(x, 1, 1), 1)


def _sums(x: Tensor, step: int, border: int = 0) -> Tensor:
    """Sums over squares of two by two, so many steps apart; a last odd row or column stands alone."""
    # images lie along the last axis, as the channels of one
    images = x[None].permute(0, 3, 1, 2)
    return F.avg_pool2d(images, 2, step, border, step > 1, divisor_override=1).permute(0, 2, 3, 1)[0]


def neighbour_weights(like: Tensor) -> Tensor:
    """The summed weights of each pixel's neighbours (H, W, 1): 12, and fewer at the edges."""
    return blurred(like.new_ones(*like.shape[:2], 1)) - MIDDLE


def _grids(known: Tensor, hole: Tensor) -> list[_Grid]:
    """From fine to coarse: a pixel is missing where all its finer ones are, else the mean of the others."""
    kept = (~hole).to(known.dtype)
    grids = [_Grid(known, 1 - kept)]
    while min(known.shape[:2]) > SMALLEST_GRID:
        count = _sums(kept, 2)
        known, kept = _sums(known, 2) / count.clamp(min=1), (count > 0).to(known.dtype)
        grids.append(_Grid(known, 1 - kept))
    return grids


def _first_solution(grids: list[_Grid]) -> Tensor:
    """From the coarsest grid, where the hole takes the mean of what is known, to the finest."""
    last = grids[-1]
    count = (1 - last.hole).sum((0, 1)).clamp(min=1)
    value = torch.addcmul(last.known, last.hole, last.known.sum((0, 1)) / count)
    for _ in range(SMOOTHING):
        value = last.settle(value)
    for grid in reversed(grids):
        if grid is not last:
            value = torch.addcmul(grid.known, grid.hole, grid.unfolded(value))
        for _ in range(SMOOTHING):
            value = grid.settle(value)
    return value


def _cycle(grids: list[_Grid], level: int, right: Tensor) -> Tensor:
    """Approximate the solution for `right`: smooth, correct from the coarser grid, smooth again.

    The same smoothing on both ways makes it symmetric, as conjugate gradients need.
    """
    grid = grids[level]
    value = right / grid.degree
    if level == len(grids) - 1:
        for _ in range(COARSEST):
            value = grid.relax(value, right)
        return value
    # the coarse hole leaves out every block that is not missing whole
    coarse = _sums(blurred(value), 2) * grids[level + 1].hole
    correction = grid.unfolded(_cycle(grids, level + 1, coarse))
    return grid.relax(value + COARSE_WEIGHT * correction, right)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((0, 1))
