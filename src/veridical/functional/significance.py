"""Tests, corrections and intervals over the samples of a score."""

from __future__ import annotations

import math
from functools import lru_cache
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional._rows import align, as_double, nan_where
from veridical.functional.correlation import tied_runs


class Interval(NamedTuple):
    """The two ends of an interval."""

    low: Tensor
    high: Tensor


def win_units(
    own: Tensor,
    other: Tensor,
    grid: float,
    *,
    no_map: Tensor | None = None,
    other_no_map: Tensor | None = None,
    scale: float | Tensor = 0.0,
) -> Tensor:
    """Give 1 where `own` is the higher score, 1/2 where the two tie, 0 where it is the lower.

    Shapes broadcast. Scores tie where `|own - other| <= grid * max(|own|, |other|, scale)`; `grid` is 1e-5 in
    float32 and 1e-9 in float64, and `scale` is the size below which a score is rounding (1 for a
    probability or a correlation). A score that is NaN ties, since the metric has nothing to say there, but a
    method without a map of the sample, marked by `no_map`, loses, and wins over one marked by
    `other_no_map`; two without a map tie.

    Parameters
    ----------
    own : Tensor
        Scores, higher is better.
    other : Tensor
        Scores they are compared with.
    grid : float
        Relative difference up to which scores tie.
    no_map : Tensor, optional
        Samples in which `own` has no map.
    other_no_map : Tensor, optional
        Samples in which `other` has none.
    scale : float or Tensor
        Size below which a score is rounding.

    Returns
    -------
    Tensor
        1, 1/2 or 0, in the common shape.

    Examples
    --------
    >>> win_units(torch.tensor([2.0, 1.0, 0.0, torch.nan]), torch.tensor([1.0, 1.0, 1.0, 1.0]), 1e-5).tolist()
    [1.0, 0.5, 0.0, 0.5]
    """
    if not 0 <= grid < 1:
        raise InputError(f"grid is a share of the scores between 0 and 1, got {grid}")
    own, other = torch.broadcast_tensors(as_double(own, "own"), as_double(other, "other"))
    size = torch.maximum(own.abs(), other.abs()).clamp(min=torch.as_tensor(scale).to(own))
    # infinities tie with themselves alone: a share of one is no distance
    tied = (own == other) | (size.isfinite() & ((own - other).abs() <= grid * size))
    units = torch.where(own > other, 1.0, 0.0).to(own).masked_fill(tied | own.isnan() | other.isnan(), 0.5)
    lost = torch.zeros_like(units, dtype=torch.bool) if no_map is None else no_map.expand_as(units)
    won = torch.zeros_like(lost) if other_no_map is None else other_no_map.expand_as(units)
    units = units.masked_fill(lost, 0.0).masked_fill(won, 1.0)
    return units.masked_fill(lost & won, 0.5)


STAKES = (0.25, 0.5, 0.75, 0.95)
"""Shares of its wealth that each of four gamblers stakes on every unit; each starts with a quarter.

Fixed in advance, so nothing is tuned on the data. At a win rate of .75 small stakes grow best, at one near 1
large ones; the four together lose at most a factor 4 against the best of them.
"""


def betting_wealth(units: Tensor, where: Tensor | None = None) -> Tensor:
    """Give the wealth after each unit of a gambler who starts with 1 and bets that units exceed 1/2.

    Units lie in [0, 1] (loss 0, tie 1/2, win 1): `W_t = mean_s prod_(i <= t) (1 + s (2 u_i - 1))` over fixed
    stakes s. If the mean unit is at most 1/2, given those before it, no bet gains on average, whatever the
    shape of the units: `W` is a non-negative supermartingale (Waudby-Smith and Ramdas 2024). Units are taken
    in the order given, which must be fixed before they are seen (the order of a task's keyed draw of
    samples); the last wealth does not depend on it. NaN and masked units are absent: wealth stays.

    Parameters
    ----------
    units : Tensor
        Units (..., N) in [0, 1], in an order fixed beforehand.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Wealth (..., N) after each unit.

    Examples
    --------
    >>> betting_wealth(torch.tensor([1.0, 0.5])).tolist()
    [1.6125, 1.6125]
    """
    return _log_wealth(units, where).exp()


def betting_p(units: Tensor, where: Tensor | None = None) -> Tensor:
    """Give the p-value of H0 "the mean unit is at most 1/2" for each row (..., N) of units in [0, 1].

    `p = 1 / max_t W_t`, at most 1 (Ville 1939): wealth ever reaches 1/a with probability at most a under H0.
    So it holds however often one tests and whenever one stops, as long as units are only added behind those
    already seen. A row without units has p = 1.

    Parameters
    ----------
    units : Tensor
        Units (..., N) in [0, 1], in an order fixed beforehand.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        p-values (...).

    Examples
    --------
    >>> round(betting_p(torch.ones(8)).item(), 4)
    0.0122
    """
    path = _log_wealth(units, where)
    start = path.new_zeros((*path.shape[:-1], 1))
    return torch.cat([start, path], -1).amax(-1).neg().exp()


class Settled(NamedTuple):
    """Which bound each row crossed first (1 more than half, -1 less, 0 neither), and after how many units."""

    side: Tensor
    at: Tensor


def settle(units: Tensor, shown: float = 0.01, fails: float = 0.01, where: Tensor | None = None) -> Settled:
    """Tell for each row of units whether its mean is shown to be above 1/2, or below, and since when.

    A gambler bets that units exceed 1/2 (`betting_wealth`), another one that they stay below it (the same
    with `1 - units`). The first wealth to reach its bound, `1 / shown` or `1 / fails`, settles the row for
    good: units behind that one cannot change it. Under "the mean is at most 1/2" a row is ever shown with
    probability at most `shown`, under "at least 1/2" it ever fails with probability at most `fails`.

    Parameters
    ----------
    units : Tensor
        Units (..., N) in [0, 1], in an order fixed beforehand.
    shown, fails : float
        Levels of the two tests.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Settled
        `side` (...), 1, -1 or 0, and `at` (...), the place of the unit that settled it, from 1; 0 where none
        did.

    Examples
    --------
    >>> settle(torch.tensor([[1.0] * 9, [0.5] * 9, [0.0] * 9]))
    Settled(side=tensor([ 1,  0, -1]), at=tensor([9, 0, 9]))
    """
    up = _log_wealth(units, where) >= -math.log(shown)
    down = _log_wealth(1 - as_double(units, "units"), where) >= -math.log(fails)
    return _first_crossing(up, down)


def _first_crossing(up: Tensor, down: Tensor) -> Settled:
    """Which of two bounds is crossed first along the last axis, and where, from 1."""
    end = torch.ones_like(up.any(-1, keepdim=True))
    first, second = (torch.cat([crossed, end], -1).long().argmax(-1) + 1 for crossed in (up, down))
    side = (first < second).long() - (second < first).long()
    return Settled(side, torch.where(side == 0, 0, torch.minimum(first, second)))


def confidence_sequence(units: Tensor, level: float = 0.99, where: Tensor | None = None) -> Interval:
    """Give an interval of the mean of each row of units that holds at every length at once.

    Every mean m that betting refutes is left out: against m a gambler with the stakes of `betting_wealth`
    bets that units exceed it, `W_t(m) = mean_s prod_(i <= t) (1 + s (u_i / m - 1))`, another one that they
    stay below, and m is refuted where either ever reached `2 / (1 - level)`. So the interval contains the
    true mean after every unit with probability `level`, however often it is looked at and whenever one stops
    (Waudby-Smith and Ramdas 2024); at m = 1/2 it is the test of `betting_p` itself. It is never narrower than
    a point at the mean of the units so far.

    Parameters
    ----------
    units : Tensor
        Units (..., N) in [0, 1], in an order fixed beforehand.
    level : float
        Probability with which the true mean is inside at every length.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Interval
        Lower and upper ends (...); 0 and 1 without units.

    Examples
    --------
    >>> low, high = confidence_sequence(torch.ones(24))
    >>> round(low.item(), 2), high.item()
    (0.76, 1.0)
    """
    if isinstance(level, bool) or not isinstance(level, Real) or not 0.0 < level < 1.0:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    bound = math.log(2 / (1 - level))
    units, here = _checked_units(units, where)
    mean = torch.where(here, units, 0.0).sum(-1) / here.sum(-1)
    low, high = (_lower_end(some, here, bound) for some in (units, 1 - units))
    return Interval(torch.fmin(low, mean), torch.fmax(1 - high, mean))


_BISECTIONS = 30


def _lower_end(units: Tensor, here: Tensor, bound: float) -> Tensor:
    """The smallest mean that is not refuted from above: wealth against m never grows with m."""
    low = units.new_zeros(units.shape[:-1])
    high = torch.ones_like(low)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        gain = torch.where(here, units / middle.unsqueeze(-1) - 1, 0.0)
        refuted = (_log_mean_wealth(gain) >= bound).any(-1)
        low, high = torch.where(refuted, middle, low), torch.where(refuted, high, middle)
    return low


def units_to_settle(
    units: Tensor,
    shown: float = 0.01,
    fails: float = 0.01,
    *,
    chance: float = 0.8,
    most: int = 1000,
    draws: int = 200,
    seed: int = 0,
) -> int | None:
    """Give the number of units, those there are included, that would settle all rows with a given chance.

    Rows are several tests of the same samples. Further samples are drawn from those there are, with
    replacement, and added behind them; a draw is settled where every row is shown or any row fails.

    Parameters
    ----------
    units : Tensor
        Units (T, N) in [0, 1] of T tests, in an order fixed beforehand.
    shown, fails : float
        Levels of the two tests, as in `settle`.
    chance : float
        Share of the draws that are to be settled.
    most : int
        Units up to which is looked.
    draws : int
        How often further samples are drawn.
    seed : int
        Seed of the draws.

    Returns
    -------
    int or None
        The number of units; None where `most` of them do not do.

    Examples
    --------
    >>> units_to_settle(torch.tensor([[1.0, 1.0, 0.5, 1.0]])), units_to_settle(torch.tensor([[1.0, 0.0]]))
    (13, None)
    """
    count = units.shape[-1]
    if not count or count >= most:
        return None
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(count, (draws, most - count), generator=generator)
    paths = torch.cat([units.unsqueeze(0).expand(draws, -1, -1), units[:, picks].transpose(0, 1)], -1)
    side, at = settle(paths, shown, fails)
    never = most + 1
    failed = torch.where(side < 0, at, never).amin(-1)
    passed = torch.where(side > 0, at, never).amax(-1)
    times = torch.minimum(failed, passed).sort().values
    found = int(times[math.ceil(chance * draws) - 1])
    return None if found == never else max(found, count)


def _checked_units(units: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
    """Units, and which of them count; those outside of [0, 1] are refused."""
    units, valid = align(where, units=units)
    here = valid & ~units.isnan()
    if bool((here & ((units < 0) | (units > 1))).any()):
        seen = units[here]
        raise InputError(f"units lie in [0, 1], got values from {float(seen.min())} to {float(seen.max())}")
    return units, here


def _log_wealth(units: Tensor, where: Tensor | None) -> Tensor:
    units, here = _checked_units(units, where)
    return _log_mean_wealth(torch.where(here, 2 * units - 1, 0.0))


def _log_mean_wealth(gain: Tensor) -> Tensor:
    """The logarithm of the wealth after each unit, of what a stake of everything would gain by each."""
    # in logarithms: 2,000 wins in a row are more than a float holds
    each = torch.stack([torch.log1p(stake * gain).cumsum(-1) for stake in STAKES])
    return torch.logsumexp(each, 0) - math.log(len(STAKES))


_EXACT_UP_TO = 50


class SignedRank(NamedTuple):
    """The smaller rank sum, its two-sided p-value, and the share of rank mass by which one side prevails."""

    statistic: Tensor
    p: Tensor
    rank_biserial: Tensor


def signed_rank(x: Tensor, y: Tensor | None = None, where: Tensor | None = None) -> SignedRank:
    """Test whether differences `x - y` (or `x` alone) are symmetric around zero, two-sided, zeros split.

    With R+ and R- the sums of the ranks of |d| over positive and negative d, each given half the ranks of the
    zeros: `statistic = min(R+, R-)` and `rank_biserial = (R+ - R-) / (R+ + R-)`.
    The p-value is exact for up to 50 differences without zeros or ties, otherwise
    `2 Phi(-|R+ - n(n+1)/4| / se)`, `se^2 = (n(n+1)(2n+1) - sum(t^3 - t)/2) / 24` over groups of t ties,
    without continuity correction. Identical vectors give p = 1. NaN without any valid difference, or with a
    NaN among them.

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    y : Tensor, optional
        Rows that are subtracted.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    SignedRank
        Statistic, p-value and rank-biserial correlation of each row.

    Examples
    --------
    >>> test = signed_rank(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.zeros(5))
    >>> test.statistic.item(), test.p.item(), test.rank_biserial.item()
    (0.0, 0.0625, 1.0)
    """
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


def holm(p: Tensor) -> Tensor:
    """Adjust p-values so that the chance of any false discovery in a row stays below the level (Holm 1979).

    With p ascending, `adjusted_(i) = min(1, max_{j <= i} (m - j + 1) p_(j))`. NaN comes back as NaN
    and does not count towards m.

    Parameters
    ----------
    p : Tensor
        p-values (..., M).

    Returns
    -------
    Tensor
        Adjusted p-values (..., M).

    Examples
    --------
    >>> holm(torch.tensor([0.25, 0.0625, 0.125], dtype=torch.float64)).tolist()
    [0.25, 0.1875, 0.25]
    """
    p, _ = align(None, p=p)
    ascending, order = torch.sort(p, dim=-1, stable=True)
    tests = (~ascending.isnan()).sum(-1, keepdim=True)
    remaining = tests - torch.arange(p.shape[-1], device=p.device)
    # NaN sorts last; standing in as -inf it cannot lift the running maximum of anything.
    stepped = torch.where(ascending.isnan(), -torch.inf, remaining * ascending).cummax(-1).values
    adjusted = torch.empty_like(p).scatter_(-1, order, stepped.clamp(max=1.0))
    return nan_where(p.isnan(), adjusted)


# Resamples come in blocks with a seed of their own: the draws then depend neither on how much memory is used
# at a time nor on other rows.
_BLOCK = 32
_ENTRIES_AT_ONCE = 2**22


def bootstrap_interval(values: Tensor, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> Interval:
    """Give the percentile bootstrap interval of the mean of each row (Efron 1979).

    Draw n of the n entries with replacement, `resamples` times; the interval runs between the
    `(1 - level)/2` and `(1 + level)/2` quantiles (linearly interpolated) of the mean over the draws.
    All rows share the same draws, made on the CPU by a generator of their own, so that results are the same
    in any batch and on any device. NaN in gives NaN out, and so does a row without an entry.

    Parameters
    ----------
    values : Tensor
        Rows (..., N).
    level : float
        Share of the resampled means inside.
    resamples : int
        How often rows are drawn again.
    seed : int
        Seed of the draws.

    Returns
    -------
    Interval
        Lower and upper ends (...).

    Examples
    --------
    >>> low, high = bootstrap_interval(torch.arange(100.0))
    >>> bool(low < 49.5 < high), 4 < (high - low).item() < 16
    (True, True)
    """
    if isinstance(level, bool) or not isinstance(level, Real) or not 0.0 < level < 1.0:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, got {resamples}")
    values, _ = align(None, values=values)
    shape, n = values.shape[:-1], values.shape[-1]
    if n == 0 or shape.numel() == 0:
        return Interval(values.new_full(shape, torch.nan), values.new_full(shape, torch.nan))
    undefined = values.isnan().any(-1)
    drawn = (
        _resampled_means(values.reshape(-1, n), resamples, seed).sort(-1).values.reshape(*shape, resamples)
    )

    def quantile(q: float) -> Tensor:
        place = q * (resamples - 1)
        below, above = drawn[..., math.floor(place)], drawn[..., math.ceil(place)]
        return nan_where(undefined, below.lerp(above, place - math.floor(place)))

    return Interval(quantile((1 - level) / 2), quantile((1 + level) / 2))


def _resampled_means(rows: Tensor, resamples: int, seed: int) -> Tensor:
    """The mean of each row (rows, n) in every resample: (rows, resamples)."""
    n = rows.shape[-1]
    result = rows.new_empty(rows.shape[0], resamples)
    blocks = range(0, resamples, _BLOCK)
    generator = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**62, (len(blocks),), generator=generator).tolist()
    at_once = max(1, _ENTRIES_AT_ONCE // (n * _BLOCK))
    for block_seed, start in zip(seeds, blocks, strict=True):
        uniform = torch.rand(n, _BLOCK, generator=generator.manual_seed(block_seed), dtype=torch.float64)
        pick = (uniform[:, : resamples - start].to(rows.device) * n).to(torch.long).clamp(max=n - 1)
        for top in range(0, rows.shape[0], at_once):
            some = rows[top : top + at_once].unsqueeze(-1)
            drawn = some.expand(-1, -1, pick.shape[1]).gather(1, pick.expand(len(some), -1, -1))
            result[top : top + at_once, start : start + _BLOCK] = drawn.sum(1) / n
    return result
