"""Ranks that respect ties, and the inverse of a ranking."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._rows import align, nan_where


class TiedRuns(NamedTuple):
    """A sorted row seen as runs of equal values: where the run of each sorted entry begins and ends."""

    order: Tensor
    first: Tensor
    last: Tensor


def run_begins(ordered: Tensor) -> Tensor:
    """Mark the first entry of each run of equal values in sorted rows; every NaN is a run of its own."""
    begins = torch.ones(ordered.shape, dtype=torch.bool, device=ordered.device)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    return begins


def ties_along(ascending: Tensor, count: Tensor | int) -> Tensor:
    """Which places tie with the one before (N, V), of values in ascending order of which `count` exist."""
    place = torch.arange(ascending.shape[-1], device=ascending.device)
    return ~run_begins(ascending) & (place < (count if isinstance(count, int) else count[:, None]))


def tied_runs(x: Tensor) -> TiedRuns:
    """Sort rows and find their runs of equal values; NaN sorts last."""
    n = x.shape[-1]
    ordered, order = torch.sort(x, dim=-1, stable=True)
    place = torch.arange(n, device=x.device)
    begins = run_begins(ordered)
    first = torch.where(begins, place, 0).cummax(-1).values
    # A run ends one before the next begins: the nearest beginning to the right, found from the far end.
    beginnings_from_end = torch.where(begins, place, n)[..., 1:].flip(-1)
    last = torch.full_like(first, n - 1)
    last[..., :-1] = beginnings_from_end.cummin(-1).values.flip(-1) - 1
    return TiedRuns(order, first, last)


def average_ranks(x: Tensor, where: Tensor | None = None) -> Tensor:
    """Rank each row from 1 upwards, tied values sharing the mean of the ranks they cover.

    `rank(x_i) = #{j: x_j < x_i} + (#{j: x_j = x_i} + 1) / 2` over the valid entries j.
    Masked entries get NaN; a NaN among the valid entries makes its whole row NaN, since it has no place.

    >>> average_ranks(torch.tensor([10.0, 30.0, 10.0, 20.0])).tolist()
    [1.5, 4.0, 1.5, 3.0]
    """
    # single precision has the same order in half the bytes
    single = isinstance(x, Tensor) and x.dtype == torch.float32
    if where is None:
        x = x.detach() if single and x.dim() else align(None, x=x)[0]
        return _shared_ranks(x).masked_fill_(x.isnan().any(-1, keepdim=True), torch.nan)
    wide, valid = align(where, x=x)
    x = x.detach().expand(wide.shape) if single else wide
    unknown = (valid & wide.isnan()).any(-1, keepdim=True)
    # Masked entries become NaN because NaN alone sorts behind a valid infinity.
    return nan_where(~valid | unknown, _shared_ranks(nan_where(~valid, x)))


def _shared_ranks(x: Tensor) -> Tensor:
    """The mean of the ranks each entry's equals cover; what NaN gets means nothing."""
    if x.shape[-1] == 0:
        return x.double()
    order, first, last = tied_runs(x)
    # a run from place p to place q (counted from 0) covers the ranks p + 1 to q + 1
    shared = (first + last).double().div_(2).add_(1)
    return torch.empty_like(shared).scatter_(-1, order, shared)


def positions(order: Tensor) -> Tensor:
    """Invert a permutation: where each item of a ranking stands in it.

    `positions(order)[order[i]] = i`, for each row.

    >>> positions(torch.tensor([2, 0, 1])).tolist()
    [1, 2, 0]
    """
    order = order.detach().to(torch.long)
    place = torch.arange(order.shape[-1], device=order.device).expand(order.shape)
    return torch.empty_like(order).scatter_(-1, order, place)
