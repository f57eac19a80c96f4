"""The four consistencies of a metric: what its scores do under slight and under disruptive noise.

Shapes throughout: L explainers, N samples, K draws, any batch in front. `base` (..., L, N) holds the scores
of the unperturbed task, `perturbed` (..., K, L, N) those of K perturbed ones, `kept` (..., K, N) the
samples that count: in noise resilience those whose prediction held, in adversary reactivity those whose did
not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from veridical.errors import ShapeError
from veridical.functional import signed_rank
from veridical.values.scores import Direction

MIN_SAMPLES = 6
"""With fewer kept samples there is no value: a signed-rank test could not even reach p = 0.05."""


def paired(base: Tensor, perturbed: Tensor, kept: Tensor) -> Tensor:
    """Which pairs of scores count (..., K, L, N): kept, and with a value on both sides."""
    _check(base, perturbed, kept)
    return kept.unsqueeze(-2) & ~base.unsqueeze(-3).isnan() & ~perturbed.isnan()


def intra_consistency(
    base: Tensor, perturbed: Tensor, kept: Tensor, *, least: int = MIN_SAMPLES
) -> tuple[Tensor, Tensor]:
    """Wilcoxon's p and the matched-pairs rank-biserial r of every draw and explainer (..., K, L); eq. 5.

    Two-sided, zeros split, so that identical scores give p = 1. NaN below `least` pairs. Noise resilience is
    the mean of p, adversary reactivity that of 1 - p; |r| does not grow with N as p falls with it.
    """
    pairs = paired(base, perturbed, kept)
    test = signed_rank(base.unsqueeze(-3), perturbed, where=pairs)
    few = pairs.sum(-1) < least
    return test.p.masked_fill(few, torch.nan), test.rank_biserial.masked_fill(few, torch.nan)


def inter_consistency_nr(
    base: Tensor,
    perturbed: Tensor,
    kept: Tensor,
    *,
    published: bool = False,
    least: int = MIN_SAMPLES,
    ties: float = 0.0,
) -> Tensor:
    """IEC_NR of every draw (..., K): the share of (sample, explainer) whose rank did not move; eq. 6-7.

    With ties a rank is unchanged if strict orders that agree with the two weak ones give the same: to break a
    tie is no change. Of explainers tied in both as many count as there are places for them in both. Scores
    tie with the next larger one within a share `ties` of the sample's largest.
    `published` compares the outputs of argsort, where ties are in the order of their places: so numpy sorts a
    few explainers, unless by vector instructions. A sample that lacks a score of any explainer has no
    ranking, and one explainer keeps its rank whatever happens.
    """
    _check(base, perturbed, kept)
    before, after = base.movedim(-2, -1).unsqueeze(-3), perturbed.movedim(-2, -1)
    counts = kept & ~before.isnan().any(-1) & ~after.isnan().any(-1) & (base.shape[-2] > 1)
    if published:
        same = (before.argsort(dim=-1, stable=True) == after.argsort(dim=-1, stable=True)).double()
    else:
        before, after = _levels(before, ties), _levels(after, ties)
        tied = [each.unsqueeze(-1) == each.unsqueeze(-2) for each in (before, after)]
        first = [(each.unsqueeze(-2) < each.unsqueeze(-1)).sum(-1) for each in (before, after)]
        ends = [start + equal.sum(-1) for start, equal in zip(first, tied, strict=True)]
        places = (torch.minimum(*ends) - torch.maximum(*first)).clamp(min=0)
        alike = (tied[0] & tied[1]).sum(-1).clamp(min=1)
        same = (torch.minimum(places, alike) / alike).double()
    total = counts.sum(-1)
    shares = torch.where(counts, same.mean(-1), 0.0).sum(-1) / total
    return shares.masked_fill(total < least, torch.nan)


def _levels(scores: Tensor, ties: float) -> Tensor:
    """The scores of a sample (..., L) numbered from the lowest on, tied ones alike."""
    ordered, order = scores.sort(dim=-1)
    reach = ties * scores.where(scores.isfinite(), 0.0).abs().amax(-1, keepdim=True)
    higher = ordered.diff(dim=-1, prepend=ordered[..., :1]) > reach
    return torch.empty_like(order).scatter(-1, order, higher.cumsum(-1))


def inter_consistency_ar(
    base: Tensor,
    perturbed: Tensor,
    kept: Tensor,
    direction: Direction,
    *,
    published: bool = False,
    least: int = MIN_SAMPLES,
) -> Tensor:
    """IEC_AR of every draw (..., K): the share of (sample, explainer) that score worse; eq. 6 and 8.

    `published` counts "perturbed is larger" whatever the direction, and a missing score as "no".
    """
    pairs, before = paired(base, perturbed, kept), base.unsqueeze(-3)
    lower = Direction(direction) is Direction.HIGHER and not published
    worse = (perturbed < before) if lower else (perturbed > before)
    if published:
        pairs = kept.unsqueeze(-2).expand_as(pairs)
    shares = (worse & pairs).sum((-2, -1)) / pairs.sum((-2, -1)).double()
    return shares.masked_fill(pairs.any(-2).sum(-1) < least, torch.nan)


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
    least: int = MIN_SAMPLES,
    ties: float = 0.0,
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
    least
        The fewest samples of a draw that give it a value.
    ties
        The share of a sample's largest score by which two explainers may differ and still tie in rank.

    Returns
    -------
    Consistencies
        The four entries (...), and effects that do not depend on the number of samples.
    """
    p_near, r_near = intra_consistency(base, near, kept_near, least=least)
    p_far, r_far = intra_consistency(base, far, kept_far, least=least)
    if average_first:
        near, kept_near = averaged_over_draws(near, kept_near)
        far, kept_far = averaged_over_draws(far, kept_far)
    each = (-2, -1)
    rules: dict[str, Any] = {"published": published, "least": least}
    return Consistencies(
        p_near.nanmean(each),
        (1 - p_far).nanmean(each),
        inter_consistency_nr(base, near, kept_near, ties=ties, **rules).nanmean(-1),
        inter_consistency_ar(base, far, kept_far, direction, **rules).nanmean(-1),
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


ENTRIES_AT_ONCE = 2**18
"""Scores of resamples that are held at once."""


def resampled_vectors(
    base: Tensor,
    near: Tensor,
    far: Tensor,
    kept_near: Tensor,
    kept_far: Tensor,
    direction: Direction,
    picks: Tensor,
    **rules: Any,
) -> Tensor:
    """(IAC_NR, IAC_AR, IEC_NR, IEC_AR) of each choice of samples (B, N), mean over iterations (B, 4).

    Shapes are those of one metric, (L, N) and (iterations, K, L, N). Whether a draw has enough samples is
    settled by the samples themselves, not by the choice.
    """
    enough = [each & (each.sum(-1, keepdim=True) >= MIN_SAMPLES) for each in (kept_near, kept_far)]
    found = []
    for some in picks.split(max(1, ENTRIES_AT_ONCE // near.numel())):
        parts = [each[..., some].movedim(-2, 0) for each in (base[None], near, far, *enough)]
        chosen: Any = (*parts, direction)
        found.append(consistencies(*chosen, least=1, **rules).vector.nanmean(1))
    return torch.cat(found)
