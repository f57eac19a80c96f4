"""What every function of this package does first: float64, common shape, one mask of valid entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from veridical.errors import InputError, ShapeError

SMALLEST = torch.finfo(torch.float64).tiny
"""A unit in which a row of zeros stays one: smaller than the size of anything that is measured."""
# A mean of equal numbers, or one sum taken in two orders, is off by a few units in the last place; a row that
# varies by no more than this carries no information about anything.
_NOISE = 16 * torch.finfo(torch.float64).eps
_LARGEST_FINITE = torch.finfo(torch.float64).max
_BLOCK = 2**22
"""Numbers in a block of rows: float64 copies of them take some tens of megabytes."""


def as_double(x: Tensor, name: str = "x") -> Tensor:
    """Give `x` in float64, outside any graph: these are measurements, not losses."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a torch.Tensor, got {type(x).__name__}; wrap it in torch.as_tensor")
    if x.is_complex():
        raise InputError(f"{name} is complex ({x.dtype}); expected real numbers")
    return x.detach().to(torch.float64)


def align(where: Tensor | None, **named: Tensor) -> tuple[Tensor, ...]:
    """Broadcast named tensors against each other and give them, then the mask of valid entries, in one shape.

    The mask may add leading dimensions but never lengthens the rows themselves.
    """
    doubles = {name: as_double(x, name) for name, x in named.items()}
    shapes = {name: tuple(x.shape) for name, x in doubles.items()}
    if any(not shape for shape in shapes.values()):
        raise ShapeError(f"expected rows along the last dimension, got shapes {shapes}; use x.unsqueeze(-1)")
    if len({shape[-1] for shape in shapes.values()}) > 1:
        raise ShapeError(f"expected rows of one length (the last dimension), got shapes {shapes}")
    if where is not None:
        if where.dtype != torch.bool:
            raise InputError(f"where must be a bool tensor, got {where.dtype}; use where.bool()")
        length = next(iter(shapes.values()))[-1]
        if where.dim() and where.shape[-1] not in (1, length):
            raise ShapeError(
                f"where has shape {tuple(where.shape)}; its last dimension must be {length} or 1"
            )
        shapes["where"] = tuple(where.shape)
    try:
        shape = torch.broadcast_shapes(*shapes.values())
    except RuntimeError as error:
        raise ShapeError(f"shapes {shapes} do not broadcast against each other") from error
    if where is None:
        where = torch.ones((), dtype=torch.bool, device=next(iter(doubles.values())).device)
    return (*(x.expand(shape) for x in doubles.values()), where.expand(shape))


def numbers_on(device: torch.device, values: Sequence[float], dtype: torch.dtype = torch.float64) -> Tensor:
    """A few numbers as a tensor, written by the device itself: to bring them there would wait for it."""
    return torch.stack([torch.full((), value, dtype=dtype, device=device) for value in values])


def largest_magnitude(x: Tensor, valid: Tensor) -> Tensor:
    """The largest |x| of each row, with the last dimension kept; 0 where nothing is valid."""
    if x.shape[-1] == 0:  # amax refuses empty rows
        return x.new_zeros((*x.shape[:-1], 1))
    return torch.where(valid, x.abs(), 0.0).amax(-1, keepdim=True)


def whole_largest(x: Tensor) -> Tensor:
    """The same where every entry is valid; NaN in gives NaN out."""
    return torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True)


def over_largest(x: Tensor, valid: Tensor) -> Tensor:
    """Rows over their largest magnitude, so that squares neither overflow nor vanish; 0 where not valid."""
    scale = largest_magnitude(x, valid)
    return torch.where(valid, x, 0.0) / torch.where(scale == 0, 1.0, scale)


def valid_first(valid: Tensor) -> Tensor:
    """The order that lists the valid entries first and otherwise keeps the order of the row."""
    return torch.argsort(valid.logical_not().to(torch.uint8), dim=-1, stable=True)


def nan_where(bad: Tensor, x: Tensor) -> Tensor:
    """`x` with NaN where `bad`."""
    return torch.where(bad, torch.nan, x)


def has_spread(x: Tensor, where: Tensor | None = None) -> Tensor:
    """Tell which rows vary at all, so that something can correlate with them.

    True where `max - min > 16 * eps * max|x|` over the valid entries (eps of float64). Constant rows, rows
    with fewer than two valid entries, and rows with a NaN among them are without spread.

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Booleans (...).

    Examples
    --------
    >>> has_spread(torch.tensor([[1.0, 2.0, 3.0], [0.1, 0.1, 0.1]])).tolist()
    [True, False]
    """
    x, valid = align(where, x=x)
    if x.shape[-1] == 0:
        return torch.zeros(x.shape[:-1], dtype=torch.bool, device=x.device)
    if where is None:
        return varies(x)
    span = torch.where(valid, x, -torch.inf).amax(-1) - torch.where(valid, x, torch.inf).amin(-1)
    return span > _NOISE * largest_magnitude(x, valid).squeeze(-1).clamp(max=_LARGEST_FINITE)


def varies(x: Tensor) -> Tensor:
    """The same where every entry is valid, in half the steps."""
    low, high = x.aminmax(dim=-1)
    return high - low > torch.maximum(high, -low).clamp_(max=_LARGEST_FINITE).mul_(_NOISE)


def in_blocks(
    function: Callable[..., Tensor], values: Tensor, *others: Tensor | None, width: int | None = None
) -> Tensor:
    """`function(values, *others)` on blocks of rows, joined; `others` have the same rows, or are None.

    `function` must treat every row alone, so that the cut changes nothing. `width` is how many numbers it
    makes of a row, if not about as many as the row has.
    """
    few = max(1, _BLOCK // max(1, width or values.shape[-1]))
    if len(values) <= few:
        return function(values, *others)
    parts = []
    for at in range(0, len(values), few):
        rows = slice(at, at + few)
        parts.append(function(values[rows], *(None if o is None else o[rows] for o in others)))
    return torch.cat(parts)
