"""Fill holes in images so that every missing pixel is the weighted mean of its eight neighbours.

The missing pixels v of an image solve (D - W) v = W x_kept, a sparse symmetric system with its own shape for
every mask. All images are solved together by conjugate gradients, preconditioned by one multigrid cycle:
errors that reach far die out on coarser grids, so a dozen iterations do for holes of any size. No matrix is
ever formed. Images lie along the last axis, (height, width, images), where shifted sums run over contiguous
memory, and every buffer is made once: allocating would cost several times the arithmetic.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

# The neighbours' weights 1 2 1 / 2 . 2 / 1 2 1 are a product of (1 2 1) with itself, less 4 in the middle
_MIDDLE = 4.0
_SMOOTHING = 0.8
# What a coarse grid says is taken at less than its word: its pixels are blocks, not linear pieces
_TRUST = 0.7
_SMALLEST_GRID = 3


class _Grid:
    """One level of the workspace: the buffers for images (H, W, B), and the holes last loaded into it."""

    def __init__(self, height: int, width: int, images: int, like: Tensor) -> None:
        def buffer(down: int = height, across: int = width) -> Tensor:
            return like.new_zeros(down, across, images)

        half_down, half_across = -(-height // 2), -(-width // 2)
        framed = buffer(height + 2, width + 2)
        rows, columns, pairs = buffer(height + 1, width + 2), buffer(height, width + 2), buffer(height, width + 1)
        self.inner = framed[1:-1, 1:-1]
        self.result, self.rest, self.value = buffer(), buffer(), buffer()
        self.hole, self.diagonal, self.relaxed = buffer(), buffer(), buffer()
        # on small grids making a view costs as much as using it, so all of them are made here
        self._sums = (
            (framed[:-1], framed[1:], rows),
            (rows[:-1], rows[1:], columns),
            (columns[:, :-1], columns[:, 1:], pairs),
            (pairs[:, :-1], pairs[:, 1:], self.result),
        )
        # an odd side is rounded up with pixels that are never missing
        even, doubled = (buffer(2 * half_down, 2 * half_across) for _ in range(2))
        half = buffer(half_down, 2 * half_across)
        self.quarter = buffer(half_down, half_across)
        tall, wide = even.unflatten(0, (half_down, 2)), half.unflatten(1, (half_across, 2))
        self._even = even[:height, :width]
        self._folds = ((tall[:, 0], tall[:, 1], half), (wide[:, :, 0], wide[:, :, 1], self.quarter))
        self._blocks = doubled.unflatten(0, (half_down, 2)).unflatten(2, (half_across, 2))
        self._doubled = doubled[:height, :width]
        self._degree = degree(height, width, like)[..., None]

    def load(self) -> None:
        """Make the operator for what has been written into `hole`."""
        torch.mul(self.hole, self._degree + _MIDDLE, out=self.diagonal)
        torch.mul(self.hole, _SMOOTHING / self._degree, out=self.relaxed)

    def blurred(self) -> Tensor:
        """The (1 2 1) x (1 2 1) sums of what lies in `inner`, with nothing beyond the edges."""
        for a, b, total in self._sums:
            torch.add(a, b, out=total)
        return self.result

    def apply(self) -> Tensor:
        """(D - W) of what lies in `inner` (zero outside the hole), inside the hole."""
        product = self.blurred().mul_(self.hole)
        return torch.addcmul(product.neg_(), self.diagonal, self.inner, out=self.result)

    def relax(self, right: Tensor) -> None:
        """value += relaxed * (right - (D - W) value)."""
        self.inner.copy_(self.value)
        torch.sub(right, self.apply(), out=self.rest)
        self.value.addcmul_(self.rest, self.relaxed)

    def fold(self, values: Tensor) -> Tensor:
        """Sums over blocks of two by two, in `quarter`."""
        self._even.copy_(values)
        for a, b, total in self._folds:
            torch.add(a, b, out=total)
        return self.quarter

    def add_unfolded(self, coarse: Tensor) -> None:
        """value += trust * each block's number, inside the hole."""
        self._blocks.copy_(coarse[:, None, :, None])
        self.value.addcmul_(self._doubled, self.hole, value=_TRUST)


def _cycle(grids: list[_Grid], level: int, right: Tensor) -> Tensor:
    """An approximate solution for `right`: smooth, correct from the coarser grid, smooth again.

    The same smoothing on both ways makes it symmetric, as conjugate gradients need.
    """
    grid = grids[level]
    torch.mul(right, grid.relaxed, out=grid.value)
    if level == len(grids) - 1:
        grid.relax(right)
        grid.relax(right)
        return grid.value
    grid.inner.copy_(grid.value)
    torch.sub(right, grid.apply(), out=grid.rest)
    coarse = grid.fold(grid.rest).mul_(grids[level + 1].hole)
    grid.add_unfolded(_cycle(grids, level + 1, coarse))
    grid.relax(right)
    return grid.value


class Workspace:
    """The buffers for up to `images` images of one size, made once and used for block after block."""

    def __init__(self, height: int, width: int, images: int, like: Tensor) -> None:
        self.grids = [_Grid(height, width, images, like)]
        while min(height, width) > _SMALLEST_GRID:
            height, width = -(-height // 2), -(-width // 2)
            self.grids.append(_Grid(height, width, images, like))
        self.given, self.value, self.rest, self.direction, self._product = (
            torch.zeros_like(self.grids[0].value) for _ in range(5)
        )

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.mul(a, b, out=self._product).sum((0, 1))

    def _load(self) -> None:
        """Carry the holes down: a coarse pixel is missing where all four finer ones are."""
        for finer, coarser in pairwise(self.grids):
            torch.sub(1, finer.hole, out=finer.rest)
            torch.eq(finer.fold(finer.rest), 0, out=coarser.hole)
        for grid in self.grids:
            grid.load()

    def solve(self, tolerance: float, iterations: int) -> Tensor:
        """Fill the images in `given` where `grids[0].hole` is 1.

        An image is done when its residual is below `tolerance` times its right-hand side, and stays as it is
        from then on, so that its answer does not depend on the images beside it. An image without a single
        pixel left is filled with zeros, the smallest of its many solutions.
        """
        self._load()
        grid, value, rest, direction = self.grids[0], self.value, self.rest, self.direction
        tiny = torch.finfo(value.dtype).tiny
        torch.addcmul(self.given, self.given, grid.hole, value=-1, out=value)
        grid.inner.copy_(value)
        torch.mul(grid.blurred(), grid.hole, out=rest)
        size = self._dot(rest, rest)
        goal = tolerance**2 * size
        direction.copy_(_cycle(self.grids, 0, rest))
        along = self._dot(rest, direction)
        for _ in range(iterations):
            active = size > goal
            grid.inner.copy_(direction)
            moved = grid.apply()
            length = active * (along / self._dot(direction, moved).clamp_(min=tiny))
            value.addcmul_(direction, length)
            rest.addcmul_(moved, length, value=-1)
            size = self._dot(rest, rest)
            # looking waits for a GPU, where running on costs less
            if not value.is_cuda and not bool((size > goal).any()):
                break
            step = _cycle(self.grids, 0, rest)
            renewed = self._dot(rest, step)
            direction.mul_(active * (renewed / along.clamp(min=tiny))).add_(step)
            along = renewed
        return value


def degree(height: int, width: int, like: Tensor) -> Tensor:
    """The summed weights of each pixel's neighbours (H, W): 12, and fewer at the edges."""

    def line(size: int) -> Tensor:
        sums = like.new_full((size,), 4.0)
        sums[0] -= 1
        sums[-1] -= 1
        return sums

    return line(height)[:, None] * line(width) - _MIDDLE
