"""The monotone curve nearest to a noisy one."""

from __future__ import annotations

import torch
from torch import Tensor

from ._rows import align, nan_where, valid_first


def isotonic_fit(
    y: Tensor, weights: Tensor | None = None, increasing: bool = False, where: Tensor | None = None
) -> Tensor:
    """Fit the non-increasing (or non-decreasing) row nearest to `y` in weighted least squares.

    `argmin sum w_i (y_i - f_i)^2` subject to `f_1 >= f_2 >= ...`: adjacent blocks that violate the order are
    pooled into their weighted mean until none does; the result is monotone to the last bit. Masked entries
    and those of weight 0 are ignored and come back as NaN; a NaN among the others makes its row NaN.

    >>> isotonic_fit(torch.tensor([1.0, 0.5, 0.75, 0.25])).tolist()
    [1.0, 0.625, 0.625, 0.25]
    """
    if weights is None:
        y, valid = align(where, y=y)
        weights = valid.to(torch.float64)
    else:
        y, weights, valid = align(where, y=y, weights=weights)
        valid = valid & (weights != 0)
    undefined = (valid & ~(y.isfinite() & (weights > 0))).any(-1, keepdim=True)

    order = valid_first(valid)
    used = valid.gather(-1, order) & ~undefined
    sign = 1.0 if increasing else -1.0
    value = torch.where(used, sign * y.gather(-1, order), 0.0)
    weight = torch.where(used, weights.gather(-1, order), 0.0)

    block = torch.arange(y.shape[-1], device=y.device).expand(y.shape)
    level = value
    while y.shape[-1] > 1:
        # All violations of all rows at once: whatever the rest does, a falling run is one block in the end.
        falls = (level[..., 1:] < level[..., :-1]) & used[..., 1:]
        if not bool(falls.any()):
            break
        starts = torch.ones_like(used)
        starts[..., 1:] = (block[..., 1:] != block[..., :-1]) & ~falls
        block = starts.cumsum(-1) - 1
        mass = torch.zeros_like(weight).scatter_add_(-1, block, weight)
        mean = torch.zeros_like(value).scatter_add_(-1, block, weight * value) / mass
        level = mean.gather(-1, block)

    fitted = torch.empty_like(y, memory_format=torch.contiguous_format).scatter_(-1, order, sign * level)
    return nan_where(~valid | undefined, fitted)
