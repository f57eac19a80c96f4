"""Doubt about draws that all samples share: GEF's noisy weights, drawn again among those that were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from veridical.audit.statistics import shares_beaten
from veridical.functional import pearson, spearman
from veridical.gef.outcome import gef_score
from veridical.values.scores import Scores

REDRAWS = 400


def by_draw(scores: Scores) -> Tensor | None:
    """The score of each draw of noisy weights alone (N, M), whose mean over draws is the score; else None."""
    held = scores.details
    if not {"model_distortion", "explanation_distortion"} <= set(held):
        return None
    settings = scores.provenance.get("metric", {})
    if settings.get("mean_then_correlate"):
        return None
    model, explanation = held["model_distortion"].cpu(), held["explanation_distortion"].cpu()
    correlation = pearson if settings.get("correlation") == "pearson" else spearman
    one_by_one = (model.flatten(0, 1)[:, None], explanation.flatten(0, 1)[:, None])
    return gef_score(*one_by_one, correlation)[0].view(model.shape[:2])


def redrawn_shares(
    scores: Mapping[tuple[str, str], Scores], methods: Sequence[str], metric: str, seed: int = 0
) -> Tensor | None:
    """Shares of rivals beaten (K, E, N) under K re-drawings of the draws that all samples share, or None.

    Each takes M - 1 of the M draws with replacement, the same for all methods: the spread of a mean of so
    many is, on average, that of a mean of M fresh ones. None where a metric has no such draws, or one alone.
    """
    found = [by_draw(scores[who, metric]) if (who, metric) in scores else None for who in methods]
    known = [table for table in found if table is not None]
    held = [who for who in methods if (who, metric) in scores]
    if len(known) < max(2, len(held)) or known[0].shape[1] < 2:
        return None
    nothing = torch.full_like(known[0], torch.nan)
    sign = 1.0 if scores[held[0], metric].direction.value == "higher" else -1.0
    each = torch.stack([nothing if table is None else sign * table for table in found])
    return shares_of_redraws(each, seed)


def shares_of_redraws(each: Tensor, seed: int = 0) -> Tensor:
    """Shares (K, E, N) from the utility of every draw (E, N, M), centred on those of all M draws.

    Fewer draws are noisier and bring every share nearer to a half; that is no doubt about the score, so the
    mean over re-drawings is put back to what all draws say.
    """
    draws = each.shape[-1]
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(draws, (REDRAWS, draws - 1), generator=generator)
    counts = torch.zeros(REDRAWS, draws, dtype=torch.float64).scatter_add_(
        1, picks, torch.ones_like(picks, dtype=torch.float64)
    )
    there = (~each.isnan()).double()
    total = torch.einsum("km,enm->ekn", counts, each.double().nan_to_num())
    number = torch.einsum("km,enm->ekn", counts, there)
    means = torch.where(number > 0, total / number.clamp(min=1), torch.nan)
    shares = shares_beaten(means).movedim(0, 1)
    whole = shares_beaten(each.double().nanmean(-1))
    return shares - shares.nanmean(0) + whole
