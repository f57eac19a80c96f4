"""The area under a curve given by points."""

from __future__ import annotations

import torch
from torch import Tensor

from ._rows import align, as_double, nan_where, valid_first


def area_under_curve(y: Tensor, x: Tensor | None = None, where: Tensor | None = None) -> Tensor:
    """Integrate a piecewise linear curve.

    `sum_i (x_{i+1} - x_i)(y_i + y_{i+1}) / 2`, neighbours one apart if `x` is not given. Masked points are
    dropped and their neighbours joined, as if the row had been written without them (so, without `x`, the
    neighbours are still one apart). NaN with fewer than two points.

    >>> area_under_curve(torch.tensor([0.0, 1.0, 1.0])).item()
    1.5
    >>> area_under_curve(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.0, 0.5, 1.0])).item()
    0.75
    """
    if where is None and (x is None or y.shape == x.shape) and y.dim() and y.shape[-1] > 1:
        return _whole_area(y, x)
    if x is None:
        y, valid = align(where, y=y)
        points, step = y, torch.ones((), dtype=y.dtype, device=y.device)
    else:
        y, points, valid = align(where, y=y, x=x)
    count = valid.sum(-1)
    if where is not None:
        order = valid_first(valid)
        y, points = y.gather(-1, order), points.gather(-1, order)
    if x is not None:
        step = points[..., 1:] - points[..., :-1]
    segment = torch.arange(1, max(y.shape[-1], 1), device=y.device) < count.unsqueeze(-1)
    area = torch.where(segment, step * (y[..., 1:] + y[..., :-1]) / 2, 0.0).sum(-1)
    return nan_where(count < 2, area)


def _whole_area(y: Tensor, x: Tensor | None) -> Tensor:
    """The same where every point counts, in a third of the steps."""
    y = as_double(y, "y")
    middle = y[..., 1:] + y[..., :-1]
    return (middle if x is None else middle.mul_(as_double(x, "x").diff(dim=-1))).div_(2).sum(-1)
