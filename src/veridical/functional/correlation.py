"""Ranks, and how two rows of numbers agree: Pearson, Spearman, partial rank correlation, Kendall's tau-b."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from veridical.functional._rows import (
    SMALLEST,
    align,
    as_double,
    has_spread,
    nan_where,
    over_largest,
    varies,
    whole_largest,
)


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

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Ranks (..., D) in float64.

    Examples
    --------
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

    Parameters
    ----------
    order : Tensor
        Permutations (..., D) of 0 to D - 1.

    Returns
    -------
    Tensor
        The inverse permutations (..., D).

    Examples
    --------
    >>> positions(torch.tensor([2, 0, 1])).tolist()
    [1, 2, 0]
    """
    order = order.detach().to(torch.long)
    place = torch.arange(order.shape[-1], device=order.device).expand(order.shape)
    return torch.empty_like(order).scatter_(-1, order, place)


# A rank vector that differs from another by one swap leaves a squared residual of about 24 / n^3, and
# rounding leaves about 1e-31: this line stands between the two for every n below 10^8.
_NO_RESIDUAL = 1e-24


def pearson(x: Tensor, y: Tensor, where: Tensor | None = None) -> Tensor:
    """Correlate rows linearly.

    `r = sum (x - mean x)(y - mean y) / sqrt(sum (x - mean x)^2 sum (y - mean y)^2)`; NaN where a row has no
    spread (see `has_spread`).

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    y : Tensor
        Rows of the same length, broadcast against `x`.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Correlations (...) in [-1, 1], or NaN.

    Examples
    --------
    >>> pearson(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2.0, 4.0, 8.0])).item()
    1.0
    """
    x, y, valid = align(where, x=x, y=y)
    if where is None and x.shape[-1]:
        if not (x.is_contiguous() and y.is_contiguous()):
            # sums depend in their last bit on how rows lie in memory, so these are left where they are
            r = _cosine(_whole_deviation(x), _whole_deviation(y))
            return r.masked_fill_(~(varies(x) & varies(y)), torch.nan)
        # both rows of a pair go through every step together: what a small row costs is its steps
        both = torch.stack([x, y])
        return _cosine(*_whole_deviation(both)).masked_fill_(~varies(both).all(0), torch.nan)
    r = _cosine(_deviation(x, valid), _deviation(y, valid))
    return nan_where(~(has_spread(x, valid) & has_spread(y, valid)), r)


def spearman(x: Tensor, y: Tensor, where: Tensor | None = None) -> Tensor:
    """Correlate rows by rank: Pearson's correlation of average ranks, right in the presence of ties.

    NaN where a row has no spread (see `has_spread`).

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    y : Tensor
        Rows of the same length, broadcast against `x`.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Correlations (...) in [-1, 1], or NaN.

    Examples
    --------
    >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0, 5.0])).item()
    0.5
    """
    x, y, valid = align(where, x=x, y=y)
    if where is None and x.shape[-1]:
        both = torch.stack([x, y])
        return _cosine(*centred_ranks(both)).masked_fill_(~varies(both).all(0), torch.nan)
    r = _cosine(_rank_deviation(x, valid), _rank_deviation(y, valid))
    return nan_where(~(has_spread(x, valid) & has_spread(y, valid)), r)


def partial_rank_correlation(x: Tensor, y: Tensor, given: Tensor, where: Tensor | None = None) -> Tensor:
    """Correlate rows by rank with what both share with a third row taken out.

    `(r_xy - r_xg r_yg) / sqrt((1 - r_xg^2)(1 - r_yg^2))` with Spearman's r. NaN where one of the three has no
    spread, or where `x` or `y` is a monotone function of `given`, so that nothing of it is left.

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    y : Tensor
        Rows of the same length.
    given : Tensor
        Rows whose share in both is taken out.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Correlations (...) in [-1, 1], or NaN.

    Examples
    --------
    >>> x, y, level = torch.tensor([[1.0, 2.0, 4.0, 3.0], [2.0, 1.0, 4.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    >>> round(partial_rank_correlation(x, y, level).item(), 6)
    0.666667
    """
    x, y, given, valid = align(where, x=x, y=y, given=given)
    rows = torch.stack([x, y, given])
    if where is None and x.shape[-1]:
        deviation, spread = centred_ranks(rows), varies(rows)
    else:
        deviation, spread = _rank_deviation(rows, valid.expand(rows.shape)), has_spread(rows, valid)
    # Residuals, not the formula above: 1 - r^2 loses every digit where x nearly follows `given`.
    deviation = _unit(deviation)
    control = deviation[2]
    left = deviation[:2] - (deviation[:2] * control).sum(-1, keepdim=True) * control
    something_left = left.square().sum(-1).amin(0) > _NO_RESIDUAL
    return nan_where(~(spread.all(0) & something_left), _cosine(*left))


def _deviation(x: Tensor, valid: Tensor) -> Tensor:
    """Deviations from the row's mean, the largest being 1; 0 at masked entries and in constant rows."""
    count = valid.sum(-1, keepdim=True).clamp(min=1)
    deviation = over_largest(x, valid)
    for _ in range(2):  # the second pass removes what rounding left of a mean far larger than the spread
        mean = deviation.sum(-1, keepdim=True) / count
        deviation = torch.where(valid, deviation - mean, 0.0)
    return over_largest(deviation, valid)


def _whole_deviation(x: Tensor) -> Tensor:
    """The same where every entry is valid."""
    deviation = _over_whole(x)
    for _ in range(2):
        deviation = deviation - deviation.mean(-1, keepdim=True)
    return _over_whole(deviation)


def _over_whole(x: Tensor) -> Tensor:
    return x / whole_largest(x).clamp_(min=SMALLEST)


def centred_ranks(x: Tensor, where: Tensor | None = None) -> Tensor:
    """Ranks less their mean, 0 at masked entries: rows ready for `cosine`, whose result is Spearman's.

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Ranks less their mean (..., D).

    Examples
    --------
    >>> centred_ranks(torch.tensor([10.0, 30.0, 10.0, 20.0])).tolist()
    [-1.0, 1.5, -1.0, 0.5]
    """
    if where is not None:
        *_, where = align(where, x=x)
        return _rank_deviation(x, where)
    return average_ranks(x).sub_((x.shape[-1] + 1) / 2)


def cosine(x: Tensor, y: Tensor, where: Tensor | None = None) -> Tensor:
    """The cosine of the angle between rows: `sum xy / sqrt(sum x^2 sum y^2)`; NaN where one of them is zero.

    Of rows less their means it is their correlation: `cosine(centred_ranks(x), centred_ranks(y))` is
    `spearman(x, y)`, for a row that is ranked once and compared often.

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    y : Tensor
        Rows of the same length.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Cosines (...) in [-1, 1], or NaN.
    """
    if where is None and x.dim() and y.dim() and x.shape[-1] == y.shape[-1]:
        return _cosine(as_double(x, "x"), as_double(y, "y"))
    x, y, valid = align(where, x=x, y=y)
    return _cosine(x, y) if where is None else _cosine(x.where(valid, 0.0), y.where(valid, 0.0))


def _rank_deviation(x: Tensor, valid: Tensor) -> Tensor:
    """Ranks less their mean, (n + 1)/2 whatever the ties: nothing is rounded, so equal orders give just 1."""
    middle = (valid.sum(-1, keepdim=True) + 1).to(torch.float64) / 2
    return torch.where(valid, average_ranks(x, valid) - middle, 0.0)


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    # One root of the product, not two: the root of s * s is s, so a row correlates with itself exactly 1.
    return ((x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt_()).clamp_(-1.0, 1.0)


def _unit(x: Tensor) -> Tensor:
    length = x.square().sum(-1, keepdim=True).sqrt()
    return x / torch.where(length == 0, 1.0, length)


def kendall_tau_b(x: Tensor, y: Tensor, where: Tensor | None = None) -> Tensor:
    """Compare two orderings pair by pair, with ties in either discounted.

    `tau_b = (C - D) / sqrt((n0 - n_x)(n0 - n_y))`: concordant less discordant pairs, over all `n0 = n(n-1)/2`
    pairs without those tied in x, and without those tied in y. NaN where a row has no spread.

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    y : Tensor
        Rows of the same length, broadcast against `x`.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Correlations (...) in [-1, 1], or NaN.

    Examples
    --------
    >>> kendall_tau_b(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 4.0, 2.0, 3.0])).item()
    0.3333333333333333
    """
    from scipy.stats import kendalltau

    x, y, valid = align(where, x=x, y=y)
    varied = has_spread(x, valid) & has_spread(y, valid)
    tau = torch.full(varied.shape, torch.nan, dtype=torch.float64)
    rows = ((t[varied].cpu().numpy()) for t in (x, y, valid))
    found = [kendalltau(a[used], b[used]).statistic for a, b, used in zip(*rows, strict=True)]
    tau[varied.cpu()] = torch.tensor(found, dtype=torch.float64)
    return tau.to(x.device)
