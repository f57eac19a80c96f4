"""Linear, rank and partial rank correlation of paired rows, and the flag that says why one is undefined."""

from __future__ import annotations

import torch
from torch import Tensor

from ._rows import SMALLEST, align, as_double, has_spread, nan_where, over_largest, varies, whole_largest
from .ranks import average_ranks

# A rank vector that differs from another by one swap leaves a squared residual of about 24 / n^3, and
# rounding leaves about 1e-31: this line stands between the two for every n below 10^8.
_NO_RESIDUAL = 1e-24


def pearson(x: Tensor, y: Tensor, where: Tensor | None = None) -> Tensor:
    """Correlate rows linearly.

    `r = sum (x - mean x)(y - mean y) / sqrt(sum (x - mean x)^2 sum (y - mean y)^2)`; NaN where a row has no
    spread (see `has_spread`).

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

    >>> x, y, level = torch.tensor([[1.0, 2.0, 4.0, 3.0], [2.0, 1.0, 4.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    >>> round(partial_rank_correlation(x, y, level).item(), 6)
    0.666667
    """
    x, y, given, valid = align(where, x=x, y=y, given=given)
    if where is None and x.shape[-1]:
        return _whole_partial(torch.stack([x, y, given]))
    control = _unit(_rank_deviation(given, valid))

    def left_over(row: Tensor) -> Tensor:
        # Residuals, not the formula above: 1 - r^2 loses every digit where x nearly follows `given`.
        deviation = _unit(_rank_deviation(row, valid))
        return deviation - (deviation * control).sum(-1, keepdim=True) * control

    x_left, y_left = left_over(x), left_over(y)
    something_left = torch.minimum(x_left.square().sum(-1), y_left.square().sum(-1)) > _NO_RESIDUAL
    r = _cosine(x_left, y_left)
    spread = has_spread(x, valid) & has_spread(y, valid) & has_spread(given, valid)
    return nan_where(~(spread & something_left), r)


def _whole_partial(rows: Tensor) -> Tensor:
    """The same where every entry is valid: all three rows go through every step together."""
    deviation = _unit(centred_ranks(rows))
    control = deviation[2]
    left = deviation[:2] - (deviation[:2] * control).sum(-1, keepdim=True) * control
    something_left = left.square().sum(-1).amin(0) > _NO_RESIDUAL
    return nan_where(~(varies(rows).all(0) & something_left), _cosine(*left))


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
