"""What a model's responses become: numbers on a grid, where equal ones tie, and the area under their curve.

They are rounded because the last bits of a model's arithmetic differ between equal inputs.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional._rows import SMALLEST, align, nan_where, valid_first, whole_largest

Rounding = torch.dtype | Literal["tf32"]
"""In which precision numbers were computed: a dtype, or float32 multiplied as TF32."""
_DIGITS: dict[Rounding, int] = {
    torch.float64: 9,
    torch.float32: 6,
    "tf32": 3,
    torch.float16: 3,
    torch.bfloat16: 2,
}


def grid_step(precision: Rounding) -> float:
    """The step of the grid as a share of the largest response."""
    return float(10.0 ** -_DIGITS[precision])


def round_to_grid(responses: Tensor, like: Tensor | Rounding | None = None) -> Tensor:
    """Round each row to a grid: fine enough to keep real differences, coarse enough to drop rounding noise.

    The grid step is the row's largest absolute response times 1e-6 in float32, 1e-9 in float64, 1e-3 in TF32
    and float16, 1e-2 in bfloat16. `like` is a tensor, a dtype or "tf32": the precision in which the
    model was evaluated, if not that of `responses`. The result is float64; rounding it again changes nothing.
    Integers are exact already and are only converted; infinities do not set the scale.

    Parameters
    ----------
    responses : Tensor
        Rows (..., D).
    like : Tensor, dtype or "tf32", optional
        The precision the model computed in, if not that of `responses`.

    Returns
    -------
    Tensor
        Responses (..., D) in float64.

    Examples
    --------
    >>> noisy = torch.tensor([1.0, 0.5 + 1e-7, 0.5 - 1e-7])
    >>> round_to_grid(noisy).tolist()
    [1.0, 0.5, 0.5]
    """
    dtype: Rounding = responses.dtype if like is None else like.dtype if isinstance(like, Tensor) else like
    values, _ = align(None, responses=responses)
    if dtype == "tf32" or dtype.is_floating_point:
        if dtype not in _DIGITS:
            raise InputError(
                f"no grid is defined for {dtype}; give like= as one of {[str(d) for d in _DIGITS]}"
            )
        if values.shape[-1]:  # empty rows have no largest response
            # Counting steps as a share of the largest response maps that response onto itself, bit for bit,
            # which is what makes a second rounding leave everything in place; zeros are zeros in any unit.
            scale = whole_largest(values.where(values.isfinite(), 0.0)).clamp_(min=SMALLEST)
            values = (values / scale).round_(decimals=_DIGITS[dtype]).mul_(scale)
    return values


def area_under_curve(y: Tensor, x: Tensor | None = None, where: Tensor | None = None) -> Tensor:
    """Integrate a piecewise linear curve.

    `sum_i (x_{i+1} - x_i)(y_i + y_{i+1}) / 2`, neighbours one apart if `x` is not given. Masked points are
    dropped and their neighbours joined, as if the row had been written without them (so, without `x`, the
    neighbours are still one apart). NaN with fewer than two points.

    Parameters
    ----------
    y : Tensor
        Values (..., D) of the curve.
    x : Tensor, optional
        Where they lie, ascending.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Areas (...), or NaN.

    Examples
    --------
    >>> area_under_curve(torch.tensor([0.0, 1.0, 1.0])).item()
    1.5
    >>> area_under_curve(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.0, 0.5, 1.0])).item()
    0.75
    """
    y, points, valid = align(where, y=y, x=y if x is None else x)
    count = valid.sum(-1)
    if where is not None:
        order = valid_first(valid)
        y, points = y.gather(-1, order), points.gather(-1, order)
    area = y[..., 1:] + y[..., :-1]
    if x is not None:
        area = area * points.diff(dim=-1)
    segment = torch.arange(1, max(y.shape[-1], 1), device=y.device) < count.unsqueeze(-1)
    return nan_where(count < 2, torch.where(segment, area / 2, 0.0).sum(-1))
