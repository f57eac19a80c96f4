"""Fills that look at the mask: a removed pixel takes its value from what is left around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.core import key as keyed
from veridical.core.allowed import Count, NotNegative, Positive
from veridical.core.key import Key
from veridical.core.settings import revivable
from veridical.errors import NotApplicableError
from veridical.functional.devices import current, on_host
from veridical.perturb.fills import Fill
from veridical.perturb.road import kernel
from veridical.perturb.road.solver import Workspace

# Iterations that leave an error below the noise of the fill; holes of larger images reach further
_QUICK = 2
_QUICK_UP_TO = 32  # pixels per side
# Rows solved together on a core: few enough for their buffers to stay in its cache
_TOGETHER = 64


@revivable
@dataclass(frozen=True)
class NeighbourMean(Fill):
    """The mean of the kept pixels in the surrounding square of `reach`, or of all kept pixels if none is."""

    reach: Count = 3
    """Pixels that the surrounding square extends to each side."""
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
    (D - W) v = W x_kept. With `tolerance` a row is done when its pixels differ from those means by less, as
    root mean square in units of the row's range. Without, float64 is solved to 1e-12; float32 takes two
    steps, above 32 pixels three, which leave an error below the noise: of the range of a smooth image 0.0007
    at most where half is removed, 0.0002 to 0.004 where nine tenths are.
    """

    noise: NotNegative = 0.01
    """Standard deviation of the noise, in units of the input."""
    tolerance: Positive | None = None
    """Root mean square error, as a share of a row's range, at which it is solved; None as above."""
    name: ClassVar[str] = "noisy_linear"
    looks_at_mask: ClassVar[bool] = True

    def impute(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        return self.impute_masks(x, removed[:, None], ids, key)[:, 0]

    def impute_masks(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        _images_only(self.name, x)
        if not x.is_floating_point():
            # whole numbers are filled in as real ones, and rounded
            return self.impute_masks(x.double(), removed, ids, key).round().to(x.dtype)
        shape = (*removed.shape[:2], *x.shape[1:])
        hole = removed.expand(*shape[:2], -1, *shape[3:])
        rows = x[:, None].expand(shape)
        filled = solve_holes(rows.flatten(0, 1), hole.flatten(0, 1), self.tolerance).view(shape)
        if self.noise:
            # one draw per sample, the same under all its masks, so that they differ in the mask alone
            drawn = keyed.normal(key / "road", ids, 0, x[0].numel(), x.dtype).view(x.shape)
            filled.add_(drawn[:, None], alpha=self.noise)
        return torch.where(hole, filled, rows)


def solve_holes(
    x: Tensor, hole: Tensor, tolerance: float | None = None, iterations: int | None = None
) -> Tensor:
    """Make every pixel of the hole the weighted mean of its eight neighbours; the others stay.

    `x` is (R, C, H, W) and `hole` the same, or with one channel for all. A row with no pixel left becomes 0.
    """
    height, width = x.shape[2:]
    if tolerance is None and x.dtype == torch.float64:
        tolerance = 1e-12
    # what is not asked to be exact takes as many steps whatever the image, and need not be looked at
    quick = _QUICK if max(height, width) <= _QUICK_UP_TO else _QUICK + 1
    iterations = iterations or (quick if tolerance is None else 200)
    steps = kernel.steps_for(x) if tolerance is None and len(x) else None
    if steps is not None:
        from veridical.perturb.road.gpu_solver import GpuSolver  # few have a GPU, and everybody imports this

        with current(x):
            return GpuSolver(x, hole.expand(len(x), -1, height, width), steps).solve(iterations)
    count = len(x) * x.shape[1]
    # each thread takes its share of a block
    block = _TOGETHER * min(8, torch.get_num_threads()) * 28 * 28 // (height * width)
    together = count if not on_host(x) else min(count, max(1, block))
    hole = hole.expand_as(x)
    # a block takes as long as its slowest image, and large holes are slow: like is solved with like
    order = None if together == count or tolerance is None else hole.sum((1, 2, 3)).argsort(stable=True)
    if order is not None:
        x, hole = x.index_select(0, order), hole.index_select(0, order)
    # (R, C, H, W) as (H, W, R * C): the layout of the solver, without copying
    images = x.reshape(count, height, width).permute(1, 2, 0)
    holes = hole.reshape(count, height, width).view(torch.uint8).permute(1, 2, 0)
    space = Workspace(height, width, together, x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    filled = out.view(count, height, width).permute(1, 2, 0)
    for at in range(0, count, together):
        few = min(together, count - at)
        # a last block that is not full keeps images of the one before, which nobody reads
        space.value[..., :few] = images[..., at : at + few]
        space.hole[..., :few] = holes[..., at : at + few]
        if few < together:
            space.hole[..., few:] = 0
        filled[..., at : at + few] = space.solve(iterations, tolerance)[..., :few]
    return out if order is None else torch.empty_like(out).index_copy_(0, order, out)


def _images_only(name: str, x: Tensor) -> None:
    if x.dim() != 4:
        raise NotApplicableError(f"fill '{name}' works on images (N, C, H, W), not on {tuple(x.shape)}")
