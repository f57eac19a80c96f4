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


Sums = tuple[tuple[Tensor, Tensor, Tensor], ...]


class _Grid:
    """One level of the workspace: the buffers for images (H, W, B), and the holes last loaded into it."""

    def __init__(self, height: int, width: int, images: int, like: Tensor) -> None:
        half_down, half_across = -(-height // 2), -(-width // 2)
        even = (2 * half_down, 2 * half_across)
        odd = even != (height, width)

        def buffer(down: int = height, across: int = width) -> Tensor:
            return like.new_zeros(down, across, images)

        # intermediate results take turns in two pieces of memory
        self._one, self._two = (like.new_empty((height + 1) * (width + 2) * images) for _ in range(2))
        self._shape = (height, width, images)
        self.result, self.spare = self._view(self._two), self._view(self._one)
        # on small grids making a view costs as much as using it, so all of them are made here
        self.value, self._sums = self.framed(like)
        self.hole, self._relaxed_hole = buffer(), buffer()
        # an odd side is rounded up by pixels that hold nothing
        self._padded = buffer(*even) if odd else None
        whole = self.result if self._padded is None else self._padded
        half = buffer(half_down, even[1]) if odd else self._view(self._one, half_down, even[1])
        self.quarter = buffer(half_down, half_across)
        tall, wide = whole.unflatten(0, (half_down, 2)), half.unflatten(1, (half_across, 2))
        self._folds = ((tall[:, 0], tall[:, 1], half), (wide[:, :, 0], wide[:, :, 1], self.quarter))
        self._doubled = buffer(*even) if odd else None
        blocks = self.value if self._doubled is None else self._doubled
        self._blocks = blocks.unflatten(0, (half_down, 2)).unflatten(2, (half_across, 2))
        weights = degree(height, width, like)[..., None]
        self._diagonal, self._relaxed = weights + _MIDDLE, _SMOOTHING / weights

    def _view(self, memory: Tensor, down: int | None = None, across: int | None = None) -> Tensor:
        height, width, images = self._shape
        down, across = down or height, across or width
        return memory[: down * across * images].view(down, across, images)

    def framed(self, like: Tensor) -> tuple[Tensor, Sums]:
        """A buffer with nothing around it, and the steps that sum up neighbours in it."""
        height, width, images = self._shape
        frame = like.new_zeros(height + 2, width + 2, images)
        rows, columns = self._view(self._one, height + 1, width + 2), self._view(self._two, height, width + 2)
        pairs = self._view(self._one, height, width + 1)
        sums = (
            (frame[:-1], frame[1:], rows),
            (rows[:-1], rows[1:], columns),
            (columns[:, :-1], columns[:, 1:], pairs),
            (pairs[:, :-1], pairs[:, 1:], self.result),
        )
        return frame[1:-1, 1:-1], sums

    def blurred(self, sums: Sums) -> Tensor:
        """The (1 2 1) x (1 2 1) sums of a framed buffer, with nothing beyond its edges."""
        for a, b, total in sums:
            torch.add(a, b, out=total)
        return self.result

    def apply(self, values: Tensor, sums: Sums) -> Tensor:
        """(W - D) of a framed buffer that is zero outside the hole; what lies outside means nothing."""
        # `addcmul` with one number for all images is several times slower than its two steps
        return self.blurred(sums).sub_(torch.mul(values, self._diagonal, out=self.spare))

    def loaded(self) -> None:
        """To be called when `hole` has changed."""
        torch.mul(self.hole, self._relaxed, out=self._relaxed_hole)

    def begin(self, right: Tensor) -> None:
        """Smooth once, from nothing: `right` over the diagonal."""
        torch.mul(right, self._relaxed, out=self.value)

    def left_over(self, right: Tensor) -> Tensor:
        """What `value` does not explain of `right`; what lies outside the hole means nothing."""
        return self.apply(self.value, self._sums).add_(right)

    def relax(self, right: Tensor) -> None:
        """Smooth `value` once."""
        self.value.addcmul_(self.left_over(right), self._relaxed_hole)

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
        """Add each block's number to `value`. It is 0 unless the block lies in the hole, whole."""
        if self._doubled is None:
            self._blocks.add_(coarse[:, None, :, None], alpha=_TRUST)
            return
        self._blocks.copy_(coarse[:, None, :, None])
        self.value.add_(self._doubled[: self._shape[0], : self._shape[1]], alpha=_TRUST)


def _cycle(grids: list[_Grid], level: int, right: Tensor) -> Tensor:
    """An approximate solution for `right`: smooth, correct from the coarser grid, smooth again.

    The same smoothing on both ways makes it symmetric, as conjugate gradients need. `right` is zero outside
    the hole, and so is the answer.
    """
    grid = grids[level]
    grid.begin(right)
    if level == len(grids) - 1:
        grid.relax(right)
        grid.relax(right)
        return grid.value
    # the coarse hole leaves out every block that is not missing whole
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
        self.value, self._rest = torch.zeros_like(self.hole), torch.zeros_like(self.hole)
        self._direction, self._sums = self._grids[0].framed(like)

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.mul(a, b, out=self._grids[0].spare).sum((0, 1))

    def _carry_holes_down(self) -> None:
        """A coarse pixel is missing where all four finer ones are."""
        for finer, coarser in pairwise(self._grids):
            kept = torch.sub(1, finer.hole, out=finer.result)
            torch.eq(finer.fold(kept), 0, out=coarser.hole)
        for grid in self._grids:
            grid.loaded()

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
        direction.copy_(value)
        torch.mul(grid.blurred(self._sums), self.hole, out=rest)
        size = self._dot(rest, rest)
        goal = tolerance**2 * size
        direction.copy_(_cycle(grids, 0, rest))
        along = self._dot(rest, direction)
        for _ in range(iterations):
            active = size > goal
            moved = grid.apply(direction, self._sums).mul_(self.hole)
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
