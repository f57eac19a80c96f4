"""From scores to what they tell of a metric: pure functions of scores (maps, N), higher is better."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.functional import spearman
from veridical.meta.admissible import interval

LEVEL = 0.95
SAME = 1 - 1e-9


def share(values: Tensor, low: float = 0.0) -> tuple[float, float, float]:
    """The mean over samples with its interval, moved from [low, 1] to [0, 1]."""
    moved = (torch.tensor(interval(values, LEVEL)) - low) / (1 - low)
    mean, least, most = moved.clamp(0.0, 1.0).tolist()
    return mean, least, most


def truth_first(truth: Tensor, rivals: Tensor, nearness: Tensor, ties: Tensor) -> Tensor:
    """In how many of its duels the true map (N,) scores above a rival (M, N), per sample; ties count half.

    A rival that ranks like the truth is no rival. A score that is missing wins nothing and loses nothing.
    """
    gap = truth - rivals
    won = torch.where(gap.abs() <= ties, 0.5, (gap > 0).double()).masked_fill(gap.isnan(), 0.5)
    counts = nearness < SAME
    return (won * counts).sum(0) / counts.sum(0)


def agreement(scores: Tensor, nearness: Tensor, ties: Tensor) -> Tensor:
    """Spearman's correlation of a metric's scores (K, N) with the nearness of the maps to the truth.

    Scores within rounding are equal. A metric that gives all maps of a sample one score agrees to 0.
    """
    step = torch.where(ties > 0, ties, 1.0)
    steps = torch.where(ties > 0, (scores / step).round(), scores)
    found = spearman(steps.T, nearness.T, ~(steps.isnan() | nearness.isnan()).T)
    return found.nan_to_num(0.0).masked_fill(scores.isnan().all(0), torch.nan)


def noise_share(scores: Tensor) -> float:
    """How much of the variance of scores (seeds, maps, N) within a sample is chance, in [0, 1].

    The variance over seeds, over itself plus the variance of the maps' means (less what chance adds to it).
    0 where another seed changes nothing, 1 where maps do not matter.
    """
    seeds = len(scores)
    known = ~scores.isnan().any(0).any(0)
    if seeds < 2 or not bool(known.any()):
        return float("nan")
    kept = scores[..., known]
    chance = kept.var(0).mean()
    maps = (kept.mean(0).var(0).mean() - chance / seeds).clamp(min=0.0)
    return float(chance / (chance + maps)) if chance > 0 else 0.0


def unmoved(before: Tensor, after: Tensor, ties: Tensor, differs: Tensor) -> float:
    """The share of samples whose score stays as it was, among those whose map does not."""
    stays = ((before - after).abs() <= ties) & differs
    return float(stays.sum() / differs.sum()) if bool(differs.any()) else float("nan")
