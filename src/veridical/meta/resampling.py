"""The four consistencies of many resamples of the samples, without sorting anything twice.

A bootstrap resample is a count per sample. Sorted once, the rank sums of Wilcoxon's test follow for any
counts from cumulative sums: an entry's copies are ties of each other.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from veridical.functional.ranks import tied_runs
from veridical.meta.consistency import FEWEST, averaged_over_draws, paired, rank_agreement, worsened
from veridical.values.scores import Direction

_ENTRIES_AT_ONCE = 2**21


def bootstrap_counts(samples: int, resamples: int, seed: int) -> Tensor:
    """How often each sample is drawn (resamples, samples), by a generator of its own on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(samples, (resamples, samples), generator=generator)
    return torch.zeros(resamples, samples, dtype=torch.float64).scatter_add_(
        1, picks, torch.ones(resamples, samples, dtype=torch.float64)
    )


def resampled_vectors(
    base: Tensor,
    near: Tensor,
    far: Tensor,
    kept_near: Tensor,
    kept_far: Tensor,
    direction: Direction,
    counts: Tensor,
    *,
    published: bool = False,
    average_first: bool = False,
) -> Tensor:
    """(IAC_NR, IAC_AR, IEC_NR, IEC_AR) of each resample (B, 4), mean over iterations.

    Whether a draw has enough samples is settled by the samples themselves, not by the resample.
    """
    iac_near = _resampled_p(base, near, kept_near, counts)
    iac_far = 1 - _resampled_p(base, far, kept_far, counts)
    if average_first:
        near, kept_near = averaged_over_draws(near, kept_near)
        far, kept_far = averaged_over_draws(far, kept_far)
    agreement, counted = rank_agreement(base, near, kept_near)
    iec_near = _resampled_share(agreement, counted.double(), counted, counts)
    hits, pairs = worsened(base, far, kept_far, direction, published=published)
    total = torch.where(pairs, hits, 0.0).sum(-2)
    iec_far = _resampled_share(total, pairs.double().sum(-2), pairs.any(-2), counts, summed=True)
    return torch.stack([iac_near, iac_far, iec_near, iec_far], -1)


def _resampled_share(
    hits: Tensor, weight: Tensor, counted: Tensor, counts: Tensor, summed: bool = False
) -> Tensor:
    """The weighted share of each resample (B,), mean over draws and iterations that have enough samples."""
    top = hits if summed else torch.where(counted, hits, 0.0)
    shares = (top @ counts.T) / (weight @ counts.T)
    shares = shares.masked_fill((counted.sum(-1) < FEWEST).unsqueeze(-1), torch.nan)
    # a resample may miss every kept sample of one draw: that draw then says nothing in it
    return shares.flatten(0, -2).nanmean(0)


def _resampled_p(base: Tensor, perturbed: Tensor, kept: Tensor, counts: Tensor) -> Tensor:
    pairs = paired(base, perturbed, kept)
    enough = pairs.sum(-1) >= FEWEST
    difference = (base.unsqueeze(-3) - perturbed)[enough]
    if not len(difference):
        return counts.new_full((len(counts),), torch.nan)
    used = pairs[enough]
    order, first, last = tied_runs(torch.where(used, difference.abs(), torch.nan))
    sign = torch.where(used, difference, 0.0).gather(-1, order).sign()
    there = used.gather(-1, order)
    step = max(1, _ENTRIES_AT_ONCE // difference.numel())
    return torch.cat([_mean_p(some, order, first, last, sign, there) for some in counts.split(step)])


def _mean_p(
    counts: Tensor, order: Tensor, first: Tensor, last: Tensor, sign: Tensor, there: Tensor
) -> Tensor:
    """The mean p-value over rows (R, N) for each set of counts (B, N)."""
    weight = torch.where(there, counts[:, order], 0.0)
    cumulated = weight.cumsum(-1)
    shape = weight.shape
    start = (cumulated - weight).gather(-1, first.expand(shape))
    tied = cumulated.gather(-1, last.expand(shape)) - start
    rank = weight * (start + (tied + 1) / 2)
    n = cumulated[..., -1]
    plus = (rank * (sign > 0)).sum(-1) + (rank * (sign == 0)).sum(-1) / 2
    variance = (n * (n + 1) * (2 * n + 1) - (weight * (tied.square() - 1)).sum(-1) / 2) / 24
    z = (plus - n * (n + 1) / 4) / variance.sqrt()
    # a resample of nothing, or of one pair of equal scores, shows no difference
    p = torch.where(variance > 0, torch.erfc(z.abs() / math.sqrt(2)), 1.0)
    return p.clamp(max=1.0).mean(-1)
