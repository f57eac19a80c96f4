"""The mathematics of a verdict: metrics made comparable, weighed, resampled and tested. Pure tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional import average_ranks, holm, round_to_grid, signed_rank, spearman

EXACT_UP_TO = 50
"""Shares tie often, and with ties the normal approximation calls too much significant in small samples."""
PAIRS_AT_ONCE = 1024


def shares_beaten(utility: Tensor) -> Tensor:
    """The share of the other methods that each one beats, sample by sample: (E, ...) -> (E, ...) in [0, 1].

    Ranks make metrics of any scale comparable. Ties count half. A method without a value where others have
    one shares the last place, since nothing speaks for it; where no method has a value the share is NaN.

    >>> shares_beaten(torch.tensor([[3.0], [1.0], [torch.nan]]))[:, 0]
    tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    count = len(utility)
    if count < 2:
        raise InputError(f"a share of rivals beaten needs at least two methods, got {count}")
    missing = utility.isnan()
    values = round_to_grid(utility.double().masked_fill(missing, 0.0).movedim(0, -1)).movedim(-1, 0)
    ranks = average_ranks(values.masked_fill(missing, -torch.inf).movedim(0, -1)).movedim(-1, 0)
    return ((ranks - 1) / (count - 1)).masked_fill(missing.all(0), torch.nan)


def weighed(shares: Tensor, weights: Tensor) -> Tensor:
    """One number per method and sample (E, N): the weighted mean of its shares (E, M, N) over metrics.

    Where a metric has no value in a sample, the others' weights grow in proportion.
    """
    known = ~shares.isnan()
    given = weights.double()[None, :, None] * known
    total = given.sum(1)
    return _even((shares.nan_to_num() * given).sum(1) / torch.where(total > 0, total, torch.nan))


def _even(x: Tensor) -> Tensor:
    """Shares that differ by the rounding of sums alone must tie, or tests would rank that rounding."""
    return (x * 1e12).round() / 1e12


class Resampled(NamedTuple):
    """Scores (E,), their intervals (E,), the chance of each candidate to be best, ranks' intervals (E,).

    `gap_low` and `gap_high` (E, E) are the ends of the interval of each row's score above each column's.
    """

    score: Tensor
    low: Tensor
    high: Tensor
    best: Tensor
    rank: Tensor
    rank_low: Tensor
    rank_high: Tensor
    gap_low: Tensor
    gap_high: Tensor


def resampled_scores(
    shares: Tensor,
    weights: Tensor,
    candidates: Tensor,
    *,
    weight_draws: Tensor | None = None,
    redrawn: Mapping[int, Tensor] | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Resampled:
    """Weighted scores of methods from shares (E, M, N), and what resampling samples and weights does to them.

    In every resample N samples are drawn with replacement, the same for all methods and metrics, and one row
    of `weight_draws` (B, M) replaces the weights, so that doubt about the metrics enters the verdict too.
    `redrawn` holds, for a metric whose draws all samples share, its shares (K, E, N) had these fallen
    otherwise: a resample takes one of them, since other samples would not move what they have in common.
    `candidates` (E,) marks the methods that compete for the first place; controls are scored alongside.
    """
    table = weighed(shares, weights)
    if bool(table.isnan().all()):
        raise InputError("no sample has a value under any weighted metric")
    usable = ~table.isnan().any(0)
    samples = int(usable.sum())
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(samples, (resamples, samples), generator=generator)
    counts = torch.zeros(resamples, samples, dtype=torch.float64)
    counts.scatter_add_(1, picks, torch.ones_like(picks, dtype=torch.float64))
    counts = counts / samples
    # a metric without a value in a sample says there what the others say
    filled = torch.where(shares.isnan(), table[:, None], shares)[:, :, usable]
    by_metric = torch.einsum("bn,emn->bem", counts, filled)
    for metric, others in (redrawn or {}).items():
        by_metric[:, :, metric] = _over_redraws(
            counts, _filled(others, shares[:, metric], table)[:, :, usable]
        )
    now = weights.double()[None]
    if weight_draws is not None:
        heard = weight_draws.sum(1) > 0
        now = torch.where(heard[:, None], weight_draws, now)[torch.arange(resamples) % len(weight_draws)]
    drawn = _even((by_metric * (now / now.sum(1, keepdim=True))[:, None]).sum(-1))
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.nanquantile(drawn, ends, dim=0)
    gaps = torch.stack([torch.nanquantile(_even(one[:, None] - drawn), ends, dim=0) for one in drawn.T], 1)
    rivals = drawn.masked_fill(~candidates, -torch.inf)
    first = (rivals == rivals.amax(1, keepdim=True)) & candidates
    best = (first.double() / first.sum(1, keepdim=True)).mean(0)
    score = table.nanmean(1)
    ranks = _places(rivals)
    rank_low, rank_high = torch.nanquantile(ranks, ends, dim=0)
    places = _places(score.masked_fill(~candidates, -torch.inf)[None])[0]
    outside = ~candidates
    return Resampled(
        score,
        low,
        high,
        best,
        places.masked_fill(outside, torch.nan),
        rank_low.masked_fill(outside, torch.nan),
        rank_high.masked_fill(outside, torch.nan),
        *gaps,
    )


def _filled(others: Tensor, own: Tensor, table: Tensor) -> Tensor:
    """Re-drawn shares (K, E, N) without gaps: what all draws say, or, where silent, what other metrics do."""
    return torch.where(others.isnan(), torch.where(own.isnan(), table, own), others)


def _over_redraws(counts: Tensor, others: Tensor) -> Tensor:
    """Mean shares (B, E) of resamples (B, N), each under one of the re-drawings (K, E, N)."""
    # in runs, where resampled weights go round in a cycle: the two do not march in step
    turn = torch.arange(len(counts)) * len(others) // len(counts)
    parts = [counts[turn == k] @ others[k].T for k in range(len(others))]
    return torch.cat(parts)


def _places(scores: Tensor) -> Tensor:
    """Places (B, E) from 1, the highest score first; ties share the mean place."""
    return average_ranks(-scores.nan_to_num(neginf=-1e9))


class Pairs(NamedTuple):
    """Two-sided tests of all pairs: members (P, 2), mean differences, p-values, and the same after Holm."""

    members: Tensor
    difference: Tensor
    p: Tensor
    p_holm: Tensor
    rank_biserial: Tensor


def pairwise(table: Tensor) -> Pairs:
    """Wilcoxon signed-rank tests between all pairs of rows of (E, N), corrected together (Holm)."""
    index = torch.combinations(torch.arange(len(table)), 2)
    difference = _even(table[index[:, 0]] - table[index[:, 1]])
    p, rank_biserial = _tested(difference)
    return Pairs(index, difference.nanmean(1), p, holm(p), rank_biserial)


def better_than(difference: Tensor) -> tuple[Tensor, Tensor]:
    """One-sided tests of methods above rivals from differences (E, R, N): their means and Holm's p, (E, R).

    Where the mean is not above zero, neither is the method, whatever the ranks of the differences say.
    """
    difference = _even(difference)
    two_sided, rank_biserial = _tested(difference)
    mean = difference.nanmean(-1)
    p = torch.where((rank_biserial > 0) & (mean > 0), two_sided / 2, 1 - two_sided / 2)
    return mean, holm(p.reshape(-1)).reshape(p.shape)


def _tested(difference: Tensor) -> tuple[Tensor, Tensor]:
    """Two-sided signed-rank p-values and effects of differences (..., N); p is 1 without any difference."""
    rows = difference.reshape(-1, difference.shape[-1])
    few = (~rows.isnan()).sum(-1)
    exact = int(few.masked_fill(few > EXACT_UP_TO, 0).max())
    tests = [
        signed_rank(some.nan_to_num(), where=~some.isnan(), tied_exact_up_to=exact)
        for some in rows.split(PAIRS_AT_ONCE)
    ]
    shape = difference.shape[:-1]
    p = torch.cat([test.p for test in tests]).nan_to_num(1.0)
    return p.reshape(shape), torch.cat([test.rank_biserial for test in tests]).reshape(shape)


def above_controls(shares: Tensor, weights: Tensor, controls: Tensor, missing: Tensor) -> Tensor:
    """How far methods stand above controls, (E, R, N), from shares (K, M, N) of them all.

    `controls` (K,) marks the R controls, `missing` (K, M, N) where a method has no value. A metric without a
    value of a control says nothing about that control: a control that could not be scored is not beaten.
    """
    given = weights.double()[:, None] * ~missing[controls] * ~shares[controls].isnan()
    total = given.sum(1)
    gap = (shares[~controls][:, None] - shares[controls][None]).nan_to_num()
    return (gap * given).sum(2) / torch.where(total > 0, total, torch.nan)


class Agreement(NamedTuple):
    """Kendall's W, the p-value of no agreement, each judge's rank correlation with the mean of the rest."""

    w: float
    p: float
    with_rest: Tensor


def kendall_w(scores: Tensor) -> Agreement:
    """How far judges (M, E) rank things alike: 1 in full agreement, 0 without any; ties corrected.

    W = 12 S / (m^2 (n^3 - n) - m T), S the spread of the rank sums and T = sum(t^3 - t) over ties (Kendall
    and Smith 1939); p from chi^2 = m (n - 1) W with n - 1 degrees of freedom.
    """
    judges, things = scores.shape
    if judges < 2 or things < 2:
        return Agreement(math.nan, math.nan, torch.full((judges,), torch.nan, dtype=torch.float64))
    ranks = average_ranks(scores.double())
    sums = ranks.sum(0)
    spread = (sums - sums.mean()).square().sum()
    ties = torch.stack([_tie_mass(row) for row in ranks]).sum()
    most = judges**2 * (things**3 - things) - judges * ties
    w = float(12 * spread / most) if float(most) > 0 else math.nan
    # the survival function of chi^2 with n - 1 degrees of freedom
    half = torch.tensor((things - 1) / 2, dtype=torch.float64)
    p = math.nan if math.isnan(w) else float(torch.special.gammaincc(half, half * judges * w))
    rest = (sums[None] - ranks) / (judges - 1)
    return Agreement(w, p, spearman(ranks, rest))


def _tie_mass(ranks: Tensor) -> Tensor:
    counts = ranks.unique(return_counts=True)[1].double()
    return (counts**3 - counts).sum()


class CriticalDifference(NamedTuple):
    """Mean ranks (E,) over samples (1 is best), Friedman's p, the critical difference, and its groups."""

    mean_rank: Tensor
    friedman_p: float
    difference: float
    groups: tuple[tuple[int, ...], ...]


def critical_difference(table: Tensor, alpha: float = 0.05) -> CriticalDifference:
    """Friedman's test over samples and Nemenyi's critical difference between mean ranks of (E, N) scores.

    CD = q sqrt(k (k + 1) / (6 N)), q the studentised range quantile over sqrt 2 (Demsar 2006). A group holds
    neighbours in rank whose ends differ by less than CD; groups inside others are not listed.
    """
    from scipy.stats import studentized_range

    kept = table[:, ~table.isnan().any(0)]
    methods, samples = kept.shape
    if methods < 2 or samples < 2:
        nan = torch.full((methods,), torch.nan, dtype=torch.float64)
        return CriticalDifference(nan, math.nan, math.nan, ())
    ranks = average_ranks(-kept.T)
    mean = ranks.mean(0)
    q = float(studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    difference = q * math.sqrt(methods * (methods + 1) / (6 * samples))
    agreement = kendall_w(kept.T)
    order = mean.argsort().tolist()
    groups: list[tuple[int, ...]] = []
    for first in range(methods):
        last = first
        while last + 1 < methods and float(mean[order[last + 1]] - mean[order[first]]) < difference:
            last += 1
        group = tuple(order[first : last + 1])
        if len(group) > 1 and not any(set(group) <= set(other) for other in groups):
            groups.append(group)
    return CriticalDifference(mean, agreement.p, difference, tuple(groups))
