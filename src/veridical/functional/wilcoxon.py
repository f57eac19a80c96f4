"""Wilcoxon's signed-rank test: do paired scores differ, and how one-sidedly?"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.errors import InputError

from ._rows import align, nan_where
from .ranks import tied_runs

_EXACT_UP_TO = 50


class SignedRank(NamedTuple):
    """The smaller rank sum, its two-sided p-value, and the share of rank mass by which one side prevails."""

    statistic: Tensor
    p: Tensor
    rank_biserial: Tensor


def signed_rank(
    x: Tensor, y: Tensor | None = None, where: Tensor | None = None, *, tied_exact_up_to: int = 0
) -> SignedRank:
    """Test whether differences `x - y` (or `x` alone) are symmetric around zero, two-sided, zeros split.

    With R+ and R- the sums of the ranks of |d| over positive and negative d, each given half the ranks of the
    zeros: `statistic = min(R+, R-)` and `rank_biserial = (R+ - R-) / (R+ + R-)`.
    The p-value is exact for up to 50 differences without zeros or ties, otherwise
    `2 Phi(-|R+ - n(n+1)/4| / se)`, `se^2 = (n(n+1)(2n+1) - sum(t^3 - t)/2) / 24` over groups of t ties,
    without continuity correction. Identical vectors give p = 1. NaN without any valid difference, or with a
    NaN among them.

    Rows of up to `tied_exact_up_to` (at most 50) differences *with* zeros or ties get the exact distribution
    over all changes of sign instead; 13 is what recent versions of SciPy do under `method="auto"`.

    >>> test = signed_rank(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.zeros(5))
    >>> test.statistic.item(), test.p.item(), test.rank_biserial.item()
    (0.0, 0.0625, 1.0)
    """
    if not 0 <= tied_exact_up_to <= _EXACT_UP_TO:
        raise InputError(f"tied_exact_up_to must be from 0 to {_EXACT_UP_TO}, got {tied_exact_up_to}")
    if y is None:
        difference, valid = align(where, x=x)
    else:
        first, second, valid = align(where, x=x, y=y)
        difference = first - second
    undefined = (valid & difference.isnan()).any(-1) | ~valid.any(-1)
    usable = valid & ~undefined.unsqueeze(-1)

    order, begin, end = tied_runs(nan_where(~usable, difference.abs()))
    sorted_usable = usable.gather(-1, order)
    sorted_sign = torch.where(sorted_usable, difference.gather(-1, order), 0.0).sign()
    rank = torch.where(sorted_usable, (begin + end).to(torch.float64) / 2 + 1, 0.0)
    together = torch.where(sorted_usable, (end - begin + 1).to(torch.float64), 1.0)

    half_of_zeros = torch.where(sorted_sign == 0, rank, 0.0).sum(-1) / 2
    plus = torch.where(sorted_sign > 0, rank, 0.0).sum(-1) + half_of_zeros
    minus = torch.where(sorted_sign < 0, rank, 0.0).sum(-1) + half_of_zeros
    smaller = torch.minimum(plus, minus)
    n = usable.sum(-1)

    tied = ((together > 1) | (sorted_usable & (sorted_sign == 0))).any(-1)
    p = _normal_p(plus, n, together)
    p = torch.where(~tied & (n <= _EXACT_UP_TO), _exact_p(smaller, n), p)
    if tied_exact_up_to:
        signed = torch.where(sorted_sign == 0, 0.0, rank)
        tied_p = _sign_change_p(signed, smaller - half_of_zeros, tied_exact_up_to)
        p = torch.where(tied & (n <= tied_exact_up_to), tied_p, p)

    biserial = (plus - minus) / (plus + minus)
    return SignedRank(nan_where(undefined, smaller), nan_where(undefined, p), nan_where(undefined, biserial))


def _normal_p(plus: Tensor, n: Tensor, together: Tensor) -> Tensor:
    n = n.to(torch.float64)
    # Each of t tied entries brings t^2 - 1, so that a group brings t^3 - t.
    ties = (together.square() - 1).sum(-1)
    variance = (n * (n + 1) * (2 * n + 1) - ties / 2) / 24
    z = (plus - n * (n + 1) / 4) / variance.sqrt()
    return torch.erfc(z.abs() / math.sqrt(2)).clamp(max=1.0)


def _exact_p(smaller: Tensor, n: Tensor) -> Tensor:
    table = _exact_cdf(smaller.device)
    row, column = n.clamp(max=_EXACT_UP_TO), smaller.to(torch.long).clamp(0, table.shape[-1] - 1)
    below: Tensor = table[row, column]
    return (2 * below).clamp(max=1.0)


@lru_cache(maxsize=8)
def _exact_cdf(device: torch.device) -> Tensor:
    """P(R+ <= k) for n = 0..50 differences without ties, one row per n."""
    width = _EXACT_UP_TO * (_EXACT_UP_TO + 1) // 2 + 1
    density = torch.zeros(_EXACT_UP_TO + 1, width, dtype=torch.float64)
    density[0, 0] = 1.0
    for n in range(1, _EXACT_UP_TO + 1):  # the largest rank n is positive or not, with even odds
        density[n] = density[n - 1] / 2
        density[n, n:] += density[n - 1, : width - n] / 2
    return density.cumsum(-1).to(device)


def _sign_change_p(rank: Tensor, smaller: Tensor, most: int) -> Tensor:
    """The exact two-sided p-value over all sign changes of up to `most` tied ranks; zeros have rank 0."""
    # Average ranks are multiples of a half, so doubled ones index a table.
    doubled = (2 * rank).to(torch.long).topk(min(most, rank.shape[-1]), dim=-1).values
    total = torch.arange(most * (most + 1) + 1, device=rank.device)
    density = (total == 0).to(torch.float64).expand(*rank.shape[:-1], -1)
    for step in range(doubled.shape[-1]):
        source = total - doubled[..., step : step + 1]
        moved = torch.where(source >= 0, density.gather(-1, source.clamp(min=0)), 0.0)
        density = (density + moved) / 2
    as_low = total <= (2 * smaller).to(torch.long).unsqueeze(-1)
    return (2 * torch.where(as_low, density, 0.0).sum(-1)).clamp(max=1.0)
