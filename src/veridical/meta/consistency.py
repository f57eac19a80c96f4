"""The four consistencies of a metric: what its scores do under slight and under disruptive noise.

Shapes throughout: L explainers, N samples, K draws, any batch in front. `base` (..., L, N) holds the scores
of the unperturbed task, `perturbed` (..., K, L, N) those of K perturbed ones, `kept` (..., K, N) the
samples that count: in noise resilience those whose prediction held, in adversary reactivity those whose did
not.

Bootstrap resamples are counts per sample: sorted once, the rank sums of Wilcoxon's test follow for any counts
from cumulative sums, since an entry's copies are ties of each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.errors import ShapeError
from veridical.functional import signed_rank
from veridical.functional.correlation import tied_runs
from veridical.values.scores import Direction

MIN_SAMPLES = 6
"""With fewer kept samples there is no value: a signed-rank test could not even reach p = 0.05."""


def paired(base: Tensor, perturbed: Tensor, kept: Tensor) -> Tensor:
    """Which pairs of scores count (..., K, L, N): kept, and with a value on both sides."""
    _check(base, perturbed, kept)
    return kept.unsqueeze(-2) & ~base.unsqueeze(-3).isnan() & ~perturbed.isnan()


def intra_consistency(base: Tensor, perturbed: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Wilcoxon's p and the matched-pairs rank-biserial r of every draw and explainer (..., K, L); eq. 5.

    Two-sided, zeros split, so that identical scores give p = 1. NaN below six pairs. Noise resilience is
    the mean of p, adversary reactivity that of 1 - p; |r| does not grow with N as p falls with it.
    """
    pairs = paired(base, perturbed, kept)
    test = signed_rank(base.unsqueeze(-3), perturbed, where=pairs)
    few = pairs.sum(-1) < MIN_SAMPLES
    return test.p.masked_fill(few, torch.nan), test.rank_biserial.masked_fill(few, torch.nan)


def rank_agreement(
    base: Tensor, perturbed: Tensor, kept: Tensor, *, published: bool = False
) -> tuple[Tensor, Tensor]:
    """The share of explainers whose rank did not move, for each (..., K, N), and where it counts (eq. 7).

    With ties a rank is unchanged if strict orders that agree with the two weak ones give the same: to break a
    tie is no change. Of explainers tied in both as many count as there are places for them in both.
    `published` compares the outputs of argsort. A sample that lacks a score of any explainer has no ranking.
    """
    _check(base, perturbed, kept)
    before, after = base.movedim(-2, -1).unsqueeze(-3), perturbed.movedim(-2, -1)
    counts = kept & ~before.isnan().any(-1) & ~after.isnan().any(-1)
    if base.shape[-2] < 2:
        # one explainer keeps its rank whatever happens
        counts = torch.zeros_like(counts)
    if published:
        same = before.argsort(dim=-1, stable=True) == after.argsort(dim=-1, stable=True)
        return same.double().mean(-1), counts
    tied = [each.unsqueeze(-1) == each.unsqueeze(-2) for each in (before, after)]
    first = [(each.unsqueeze(-2) < each.unsqueeze(-1)).sum(-1) for each in (before, after)]
    ends = [start + equal.sum(-1) for start, equal in zip(first, tied, strict=True)]
    places = (torch.minimum(*ends) - torch.maximum(*first)).clamp(min=0)
    alike = (tied[0] & tied[1]).sum(-1).clamp(min=1)
    return (torch.minimum(places, alike) / alike).double().mean(-1), counts


def worsened(
    base: Tensor, perturbed: Tensor, kept: Tensor, direction: Direction, *, published: bool = False
) -> tuple[Tensor, Tensor]:
    """Whether the perturbed score is worse (..., K, L, N), and where it counts (eq. 8).

    `published` counts "perturbed is larger" whatever the direction, and a missing score as "no".
    """
    pairs = paired(base, perturbed, kept)
    before = base.unsqueeze(-3)
    if published:
        return (perturbed > before).double(), kept.unsqueeze(-2).expand_as(pairs)
    lower = Direction(direction) is Direction.HIGHER
    return ((perturbed < before) if lower else (perturbed > before)).double(), pairs


def share(hits: Tensor, counts: Tensor) -> Tensor:
    """The mean of the hits that count along the last dimension."""
    return torch.where(counts, hits, 0.0).sum(-1) / counts.sum(-1)


def inter_consistency_nr(base: Tensor, perturbed: Tensor, kept: Tensor, *, published: bool = False) -> Tensor:
    """IEC_NR of every draw (..., K): the share of (sample, explainer) whose rank is unchanged; eq. 6-7."""
    agreement, counts = rank_agreement(base, perturbed, kept, published=published)
    return share(agreement, counts).masked_fill(counts.sum(-1) < MIN_SAMPLES, torch.nan)


def inter_consistency_ar(
    base: Tensor, perturbed: Tensor, kept: Tensor, direction: Direction, *, published: bool = False
) -> Tensor:
    """IEC_AR of every draw (..., K): the share of (sample, explainer) that score worse; eq. 6 and 8."""
    hits, counts = worsened(base, perturbed, kept, direction, published=published)
    few = counts.any(-2).sum(-1) < MIN_SAMPLES
    return share(hits.flatten(-2), counts.flatten(-2)).masked_fill(few, torch.nan)


def averaged_over_draws(perturbed: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Each sample's mean score over the draws that kept it (..., 1, L, N), and if any did (..., 1, N)."""
    counted = kept.unsqueeze(-2) & ~perturbed.isnan()
    mean = torch.where(counted, perturbed, 0.0).sum(-3) / counted.sum(-3)
    return mean.unsqueeze(-3), kept.any(-2, keepdim=True)


@dataclass(frozen=True, eq=False)
class Consistencies:
    """The meta-evaluation vector, one entry per batch (an iteration, say); NaN where too few were kept.

    `effect_nr` = 1 - |r| and `effect_ar` = |r| stand beside the two IAC: they do not depend on N.
    """

    iac_nr: Tensor
    iac_ar: Tensor
    iec_nr: Tensor
    iec_ar: Tensor
    effect_nr: Tensor
    effect_ar: Tensor

    @property
    def vector(self) -> Tensor:
        """(IAC_NR, IAC_AR, IEC_NR, IEC_AR) in the last dimension."""
        return torch.stack([self.iac_nr, self.iac_ar, self.iec_nr, self.iec_ar], -1)

    @property
    def mc(self) -> Tensor:
        """Meta-consistency: the mean of the four (eq. 9); NaN as soon as one is."""
        return meta_consistency(self.vector)


def meta_consistency(vector: Tensor) -> Tensor:
    """Average the four consistencies: MC = m . 1 / 4 over the last dimension (eq. 9).

    Parameters
    ----------
    vector
        Entries (..., 4): IAC_NR, IAC_AR, IEC_NR, IEC_AR.

    Returns
    -------
    Tensor
        The meta-consistency (...), NaN where an entry is.
    """
    if vector.shape[-1] != 4:
        raise ShapeError(f"a meta-evaluation vector has 4 entries, got shape {tuple(vector.shape)}")
    return vector.mean(-1)


def consistencies(
    base: Tensor,
    near: Tensor,
    far: Tensor,
    kept_near: Tensor,
    kept_far: Tensor,
    direction: Direction,
    *,
    published: bool = False,
    average_first: bool = False,
) -> Consistencies:
    """Compute the four consistencies, mean over draws and explainers that have a value.

    Parameters
    ----------
    base
        Unperturbed scores (..., L, N).
    near, far
        Scores (..., K, L, N) under slight and under disruptive noise.
    kept_near, kept_far
        The samples (..., K, N) that count: whose prediction held, and whose changed.
    direction
        Whether higher scores are better.
    published
        Do as the published program: count larger scores as reactive whatever the direction, and compare the
        outputs of argsort, which decides between tied explainers by their place.
    average_first
        Take IEC as eq. 6 prints it: each sample's scores are averaged over the draws that kept it before
        anything is compared; otherwise every draw is compared and the shares are averaged.

    Returns
    -------
    Consistencies
        The four entries (...), and effects that do not depend on the number of samples.
    """
    p_near, r_near = intra_consistency(base, near, kept_near)
    p_far, r_far = intra_consistency(base, far, kept_far)
    if average_first:
        near, kept_near = averaged_over_draws(near, kept_near)
        far, kept_far = averaged_over_draws(far, kept_far)
    each = (-2, -1)
    return Consistencies(
        p_near.nanmean(each),
        (1 - p_far).nanmean(each),
        inter_consistency_nr(base, near, kept_near, published=published).nanmean(-1),
        inter_consistency_ar(base, far, kept_far, direction, published=published).nanmean(-1),
        (1 - r_near.abs()).nanmean(each),
        r_far.abs().nanmean(each),
    )


def _check(base: Tensor, perturbed: Tensor, kept: Tensor) -> None:
    explainers, samples = base.shape[-2:]
    if perturbed.shape[-2:] != base.shape[-2:] or kept.shape[-1] != samples or kept.dtype != torch.bool:
        raise ShapeError(
            f"expected base (..., L, N), perturbed (..., K, L, N) and bool kept (..., K, N), got "
            f"{tuple(base.shape)}, {tuple(perturbed.shape)} and {tuple(kept.shape)} {kept.dtype} "
            f"(L = {explainers}, N = {samples})"
        )


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
    agreement, counted = rank_agreement(base, near, kept_near, published=published)
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
    shares = shares.masked_fill((counted.sum(-1) < MIN_SAMPLES).unsqueeze(-1), torch.nan)
    # a resample may miss every kept sample of one draw: that draw then says nothing in it
    return shares.flatten(0, -2).nanmean(0)


def _resampled_p(base: Tensor, perturbed: Tensor, kept: Tensor, counts: Tensor) -> Tensor:
    pairs = paired(base, perturbed, kept)
    enough = pairs.sum(-1) >= MIN_SAMPLES
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
