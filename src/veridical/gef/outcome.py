"""The score of GEF and all that is told beside it, from distortions of the model and of the explanation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from veridical.functional import has_spread, partial_rank_correlation, pearson, spearman
from veridical.gef.found import Found
from veridical.gef.noise_path import NoisePath
from veridical.metrics.base import Outcome
from veridical.values.scores import Curve

WEAK_FIT = 0.1
"""R^2 below which outputs are said to explain the map poorly (the jacobian form)."""
FEWEST = 3
"""Levels that a correlation needs."""


def gef_score(
    model: Tensor,
    explanation: Tensor,
    correlation: Callable[..., Tensor] = spearman,
    whole: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Correlate distortions (N, M, Z) over levels, then average over draws: scores, degenerate, empty.

    A draw whose explanation does not move scores 0 and is degenerate (Corollary 1); one whose model does not
    move, or gives an answer that is not finite, is left out; a sample with no draw left is empty and NaN.
    Levels without an explanation (NaN) are passed over, and a draw with fewer than three others is left out;
    `whole` says that there are none, where that is known.
    """
    if whole is None:
        whole = bool((model.isfinite() & ~explanation.isnan()).all())
    if not whole:
        explanation = torch.where(model.isfinite().all(-1, keepdim=True), explanation, torch.nan)
    known = None if whole else ~explanation.isnan()
    enough = known.sum(-1) >= FEWEST if known is not None else explanation.shape[-1] >= FEWEST
    still = ~has_spread(explanation, known) & enough
    kept = has_spread(model, known) & enough
    each = torch.where(still, 0.0, correlation(model, explanation, known))
    total = torch.where(kept, each, 0.0).sum(-1)
    count = kept.sum(-1)
    score = torch.where(count > 0, total / count.clamp(min=1), torch.nan)
    return score, (still & kept).any(-1), count == 0


def outcome_of(
    path: NoisePath,
    found: Found,
    correlation: Literal["spearman", "pearson"],
    mean_then_correlate: bool,
    noise: str,
) -> Outcome:
    """Scores with their ceiling, flags, curve and details; `noise` names the axis of the curve."""
    model, explanation = found.model, found.explanation
    finite = model.isfinite().all(-1, keepdim=True)
    if not found.whole:
        model, explanation = (torch.where(finite, each, torch.nan) for each in (model, explanation))
    judged_model, judged = model, explanation
    if mean_then_correlate:
        judged_model, judged = (each.nanmean(1, keepdim=True) for each in (model, explanation))
    score, degenerate, empty = gef_score(
        judged_model, judged, spearman if correlation == "spearman" else pearson, found.whole or None
    )
    known = None if found.whole else ~explanation.isnan()
    overflown = ~finite[..., 0].any(-1)
    lost = ((~judged.isnan()).sum(-1) < FEWEST).all(-1) & ~overflown
    sigma = torch.tensor(path.levels, dtype=torch.float64, device=model.device).expand(model.shape)
    follow = (
        (spearman(sigma, model), spearman(sigma, explanation, known))
        if known is not None
        else spearman(sigma.expand(2, *sigma.shape), torch.stack([model, explanation]))
    )
    partial = partial_rank_correlation(model, explanation, sigma, known)
    details = {
        "ceiling": follow[0].nanmean(-1),
        "rho_sigma_explanation": follow[1].nanmean(-1),
        "partial": partial.nanmean(-1),
        "partial_draws": (~partial.isnan()).sum(-1),
        "draws": finite[..., 0].sum(-1),
        "maps_missing": (explanation.isnan() & finite).sum((1, 2)),
        "model_distortion": model,
        "explanation_distortion": explanation,
    }
    flags = {
        "the explanation does not move": degenerate,
        "the model does not move": empty & ~lost & ~overflown,
        "no explanation": lost,
        "no explanation at some levels": (explanation.isnan() & finite).any(-1).any(-1) & ~lost,
        "answers are not finite": overflown,
        "draws dropped: answers are not finite": ~finite.all(1)[..., 0] & ~overflown,
        "the map is mostly rounding: float64 gives another": found.health.rounding,
        "the same call gives another map": torch.full_like(lost, not found.health.repeats),
    }
    if found.fit is not None and found.in_span is not None:
        details |= {"fit": found.fit, "in_span": found.in_span}
        flags[f"outputs explain the map poorly (R2 < {WEAK_FIT})"] = ~(found.fit >= WEAK_FIT)
    curve = Curve(
        torch.tensor(path.levels, dtype=torch.float64),
        explanation.nanmean(1),
        noise,
        "explanation distortion",
    )
    return Outcome(score, flags, curve, details, {"path": path.to_json()})
