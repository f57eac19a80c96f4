"""Fill holes in images so that every missing pixel is the weighted mean of its eight neighbours.

The missing pixels v of an image solve (D - W) v = W x_kept, a sparse symmetric system with its own shape for
every mask. All images are solved together by conjugate gradients, preconditioned by one multigrid cycle:
errors that reach far die out on coarser grids, so a few iterations do for holes of any size. They start from
an answer made in one way from the coarsest grid to the finest, where a pixel is known if any of its four
finer ones is. No matrix is ever formed. Images lie along the last axis, (height, width, images), where
shifted sums run over contiguous memory. Buffers are few, made once and used again, so that a block of images
stays in a processor's cache: both allocating and fetching would cost several times the arithmetic.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from veridical.functional.devices import on_host

# The neighbours' weights 1 2 1 / 2 . 2 / 1 2 1 are a product of (1 2 1) with itself, less 4 in the middle
_MIDDLE = 4.0
_NEIGHBOURS = 12.0
# What a coarse grid says is taken at less than its word: its pixels are blocks, not linear pieces
_TRUST = 0.9
SMALLEST_GRID = 7
# Smoothing steps: on every grid for the first answer, and on the smallest, where they cost little
SETTLING = 3
COARSEST = 6


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
        self.value, self.sums = self.framed(like)
        self.hole, self.known, self._share = buffer(), buffer(), buffer()
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
        self._diagonal = weights + _MIDDLE
        self._over_diagonal = 1 / self._diagonal

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
        torch.mul(self.hole, self._over_diagonal, out=self._share)

    def begin(self, right: Tensor) -> Tensor:
        """Smooth once, from nothing, and give what that leaves of `right`.

        A pixel becomes the blurred image at its place: Jacobi's step, damped by 3/4. From nothing it takes
        the share that lies in the middle, so what is left is what its neighbours blur into it; what lies
        outside the hole means nothing.
        """
        torch.mul(right, self._over_diagonal, out=self.value)
        return self.blurred(self.sums)

    def relax(self, right: Tensor) -> None:
        """Smooth `value`, which is zero outside the hole, once."""
        torch.mul(self.blurred(self.sums).add_(right), self._share, out=self.value)

    def settle(self) -> None:
        """Bring every missing pixel of `value` nearer to the mean of its neighbours."""
        torch.addcmul(self.known, self.blurred(self.sums), self._share, out=self.value)

    def start(self, coarse: Tensor | None) -> None:
        """Put what is known into `value`, and into the hole what a coarser grid says, or the mean."""
        if coarse is None:
            kept = torch.sub(1, self.hole, out=self.spare)
            count = kept.sum((0, 1)).clamp_(min=1)
            torch.mul(self.hole, self.known.sum((0, 1)) / count, out=self.value)
        elif self._doubled is None:
            self._blocks.copy_(coarse[:, None, :, None])
            self.value.mul_(self.hole)
        else:
            self._blocks.copy_(coarse[:, None, :, None])
            torch.mul(self._doubled[: self._shape[0], : self._shape[1]], self.hole, out=self.value)
        self.value.add_(self.known)

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
    rest = grid.begin(right)
    if level == len(grids) - 1:
        for _ in range(COARSEST):
            grid.relax(right)
        return grid.value
    # the coarse hole leaves out every block that is not missing whole
    coarse = grid.fold(rest).mul_(grids[level + 1].hole)
    grid.add_unfolded(_cycle(grids, level + 1, coarse))
    grid.relax(right)
    return grid.value


class Workspace:
    """The buffers for `images` images of one size, made once and used for block after block.

    Write images into `value` and holes (1 where a pixel is missing, else 0) into `hole`, then `solve`.
    """

    def __init__(self, height: int, width: int, images: int, like: Tensor) -> None:
        self._grids = [_Grid(height, width, images, like)]
        while min(height, width) > SMALLEST_GRID:
            height, width = -(-height // 2), -(-width // 2)
            self._grids.append(_Grid(height, width, images, like))
        self.hole = self._grids[0].hole
        self.value, self._rest = torch.zeros_like(self.hole), torch.zeros_like(self.hole)
        self._direction, self._sums = self._grids[0].framed(like)

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.mul(a, b, out=self._grids[0].spare).sum((0, 1))

    def _carry_down(self) -> None:
        """A coarse pixel is missing where all four finer ones are, else the mean of those that are there."""
        for finer, coarser in pairwise(self._grids):
            coarser.known.copy_(finer.fold(finer.known))
            kept = torch.sub(1, finer.hole, out=finer.result)
            there = finer.fold(kept)
            torch.eq(there, 0, out=coarser.hole)
            coarser.known.div_(there.clamp_(min=1))
        for grid in self._grids:
            grid.loaded()

    def _guess(self) -> None:
        """A first answer, in the first grid's `value`: from coarse to fine, smoothed a little on each."""
        coarse = None
        for grid in reversed(self._grids):
            grid.start(coarse)
            for _ in range(SETTLING if coarse is not None else 2 * SETTLING):
                grid.settle()
            coarse = grid.value

    def _goal(self, tolerance: float) -> Tensor:
        """The sum of squares that a residual must come below: `tolerance` times the range of the known."""
        known, missing = self._grids[0].known, self.hole.sum((0, 1))
        return (known.amax((0, 1)) - known.amin((0, 1))).mul_(tolerance * _NEIGHBOURS).square_().mul_(missing)

    def solve(self, iterations: int, tolerance: float | None = None) -> Tensor:
        """Fill the holes of `value` in so many iterations.

        With a tolerance an image is done when its missing pixels differ from the means of their neighbours,
        as root mean square, by less than so many times the range of its values (0 among them); it then stays
        as it is, so that its answer does not depend on the images beside it. An image without a single pixel
        left is filled with zeros, the smallest of its many solutions.
        """
        grids, grid = self._grids, self._grids[0]
        value, rest, direction = self.value, self._rest, self._direction
        tiny = torch.finfo(value.dtype).tiny
        torch.addcmul(value, value, self.hole, value=-1, out=grid.known)
        self._carry_down()
        goal = None if tolerance is None else self._goal(tolerance)
        self._guess()
        value.copy_(grid.value)
        torch.mul(grid.apply(grid.value, grid.sums), self.hole, out=rest)
        along: Tensor | None = None
        for step in range(iterations):
            active = None if goal is None else self._dot(rest, rest) > goal
            # looking waits for a GPU, where running on costs less
            if active is not None and on_host(value) and not bool(active.any()):
                break
            better = _cycle(grids, 0, rest)
            renewed = self._dot(rest, better)
            if along is None:
                direction.copy_(better)
            else:
                direction.mul_(renewed / along.clamp_(min=tiny)).add_(better)
            along = renewed
            moved = grid.apply(direction, self._sums).mul_(self.hole)
            length = along / -self._dot(direction, moved).clamp_(max=-tiny)
            if active is not None:
                length.mul_(active)
            value.addcmul_(direction, length)
            if step < iterations - 1:
                rest.addcmul_(moved, length)
        return value


def degree(height: int, width: int, like: Tensor) -> Tensor:
    """The summed weights of each pixel's neighbours (H, W): 12, and fewer at the edges."""

    def line(size: int) -> Tensor:
        sums = like.new_full((size,), 4.0)
        sums[0] -= 1
        sums[-1] -= 1
        return sums

    return line(height)[:, None] * line(width) - _MIDDLE
