"""Fill holes in images so that every missing pixel is the weighted mean of its eight neighbours.

The missing pixels v of an image solve (D - W) v = W x_kept, a sparse symmetric system with its own shape for
every mask. All images are solved together by conjugate gradients, preconditioned by one multigrid cycle:
errors that reach far die out on coarser grids, so a dozen iterations do for holes of any size. No matrix is
ever formed. Images lie along the last axis, (height, width, images), where shifted sums run over contiguous
memory. Buffers are few, made once and used again, so that a block of images stays in a processor's cache:
both allocating and fetching would cost several times the arithmetic.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

# The neighbours' weights 1 2 1 / 2 . 2 / 1 2 1 are a product of (1 2 1) with itself, less 4 in the middle
_MIDDLE = 4.0
_SMOOTHING = 0.8
# What a coarse grid says is taken at less than its word: its pixels are blocks, not linear pieces
_TRUST = 0.9
_SMALLEST_GRID = 7


class _Grid:
    """One level of the workspace: the buffers for images (H, W, B), and the holes last loaded into it."""

    def __init__(self, height: int, width: int, images: int, like: Tensor) -> None:
        half_down, half_across = -(-height // 2), -(-width // 2)
        even = (2 * half_down, 2 * half_across)
        odd = even != (height, width)

        def buffer(down: int = height, across: int = width) -> Tensor:
            return like.new_zeros(down, across, images)

        # intermediate results take turns in two pieces of memory
        one, two = (like.new_empty((height + 1) * (width + 2) * images) for _ in range(2))

        def view(memory: Tensor, down: int, across: int) -> Tensor:
            return memory[: down * across * images].view(down, across, images)

        framed = buffer(height + 2, width + 2)
        rows, columns = view(one, height + 1, width + 2), view(two, height, width + 2)
        pairs = view(one, height, width + 1)
        self.inner = framed[1:-1, 1:-1]
        self.result, self.spare = view(two, height, width), view(one, height, width)
        self.hole, self.value = buffer(), buffer()
        # on small grids making a view costs as much as using it, so all of them are made here
        self._sums = (
            (framed[:-1], framed[1:], rows),
            (rows[:-1], rows[1:], columns),
            (columns[:, :-1], columns[:, 1:], pairs),
            (pairs[:, :-1], pairs[:, 1:], self.result),
        )
        # an odd side is rounded up by pixels that hold nothing
        self._padded = buffer(*even) if odd else None
        whole = self.result if self._padded is None else self._padded
        half = buffer(half_down, 2 * half_across) if odd else view(one, half_down, 2 * half_across)
        self.quarter = buffer(half_down, half_across)
        tall, wide = whole.unflatten(0, (half_down, 2)), half.unflatten(1, (half_across, 2))
        self._folds = ((tall[:, 0], tall[:, 1], half), (wide[:, :, 0], wide[:, :, 1], self.quarter))
        doubled = buffer(*even) if odd else self.spare
        self._blocks = doubled.unflatten(0, (half_down, 2)).unflatten(2, (half_across, 2))
        self._doubled = doubled[:height, :width]
        weights = degree(height, width, like)[..., None]
        self._diagonal, self._relaxed = weights + _MIDDLE, _SMOOTHING / weights

    def blurred(self) -> Tensor:
        """The (1 2 1) x (1 2 1) sums of what lies in `inner`, with nothing beyond the edges."""
        for a, b, total in self._sums:
            torch.add(a, b, out=total)
        return self.result

    def apply(self) -> Tensor:
        """(W - D) of what lies in `inner` (zero outside the hole), inside the hole."""
        self.blurred().addcmul_(self._diagonal, self.inner, value=-1)
        return self.result.mul_(self.hole)

    def begin(self, right: Tensor) -> None:
        """Smooth once, from nothing: `right` over the diagonal."""
        torch.mul(right, self._relaxed, out=self.value)

    def left_over(self, right: Tensor) -> Tensor:
        """What `value` does not explain of `right`."""
        self.inner.copy_(self.value)
        return self.apply().add_(right)

    def relax(self, right: Tensor) -> None:
        """Smooth `value` once."""
        self.value.addcmul_(self.left_over(right), self._relaxed)

    def fold(self, values: Tensor) -> Tensor:
        """Sums over blocks of two by two, in `quarter`."""
        if self._padded is not None:
            self._padded[: values.shape[0], : values.shape[1]] = values
        elif values is not self.result:
            self.result.copy_(values)
        for a, b, total in self._folds:
            torch.add(a, b, out=total)
        return self.quarter

    def add_unfolded(self, coarse: Tensor) -> None:
        """Add each block's number to `value`, inside the hole."""
        self._blocks.copy_(coarse[:, None, :, None])
        self.value.addcmul_(self._doubled, self.hole, value=_TRUST)


def _cycle(grids: list[_Grid], level: int, right: Tensor) -> Tensor:
    """An approximate solution for `right`: smooth, correct from the coarser grid, smooth again.

    The same smoothing on both ways makes it symmetric, as conjugate gradients need.
    """
    grid = grids[level]
    grid.begin(right)
    if level == len(grids) - 1:
        grid.relax(right)
        grid.relax(right)
        return grid.value
    coarse = grid.fold(grid.left_over(right)).mul_(grids[level + 1].hole)
    grid.add_unfolded(_cycle(grids, level + 1, coarse))
    grid.relax(right)
    return grid.value


class Workspace:
    """The buffers for `images` images of one size, made once and used for block after block.

    Write images into `value` and holes (1 where a pixel is missing, else 0) into `hole`, then `solve`.
    """

    def __init__(self, height: int, width: int, images: int, like: Tensor) -> None:
        self._grids = [_Grid(height, width, images, like)]
        while min(height, width) > _SMALLEST_GRID:
            height, width = -(-height // 2), -(-width // 2)
            self._grids.append(_Grid(height, width, images, like))
        self.hole = self._grids[0].hole
        self.value, self._rest, self._direction = (torch.zeros_like(self.hole) for _ in range(3))

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.mul(a, b, out=self._grids[0].spare).sum((0, 1))

    def _carry_holes_down(self) -> None:
        """A coarse pixel is missing where all four finer ones are."""
        for finer, coarser in pairwise(self._grids):
            kept = torch.sub(1, finer.hole, out=finer.result)
            torch.eq(finer.fold(kept), 0, out=coarser.hole)

    def solve(self, tolerance: float, iterations: int) -> Tensor:
        """Fill the holes of `value`.

        An image is done when its residual is below `tolerance` times its right-hand side, and stays as it is
        from then on, so that its answer does not depend on the images beside it. An image without a single
        pixel left is filled with zeros, the smallest of its many solutions.
        """
        self._carry_holes_down()
        grids, grid = self._grids, self._grids[0]
        value, rest, direction = self.value, self._rest, self._direction
        tiny = torch.finfo(value.dtype).tiny
        value.addcmul_(value, self.hole, value=-1)
        grid.inner.copy_(value)
        torch.mul(grid.blurred(), self.hole, out=rest)
        size = self._dot(rest, rest)
        goal = tolerance**2 * size
        direction.copy_(_cycle(grids, 0, rest))
        along = self._dot(rest, direction)
        for _ in range(iterations):
            active = size > goal
            grid.inner.copy_(direction)
            moved = grid.apply()
            length = active * (along / -self._dot(direction, moved).clamp_(max=-tiny))
            value.addcmul_(direction, length)
            rest.addcmul_(moved, length)
            size = self._dot(rest, rest)
            # looking waits for a GPU, where running on costs less
            if not value.is_cuda and not bool((size > goal).any()):
                break
            step = _cycle(grids, 0, rest)
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
