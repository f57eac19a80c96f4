"""What repeated readings of a metric can tell: separation, the smallest difference it sees, and order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from veridical.core.key import Key, integers
from veridical.functional import spearman


def separation(better: Tensor, worse: Tensor) -> tuple[float, float]:
    """How often the one beats the other over all pairs of seeds, and an exact p-value of that.

    Values are oriented: more is better. One-sided permutation test of the difference in means over all ways
    to name the readings: with S seeds each, p is at least `1 / C(2S, S)`.
    """
    wins = (better[:, None] > worse).double() + 0.5 * (better[:, None] == worse).double()
    both = torch.cat([better, worse]).double()
    if bool(both.isnan().any()):
        return math.nan, math.nan
    size, total = len(better), both.sum()
    names = torch.tensor(list(combinations(range(len(both)), size)))
    first = both[names].sum(-1)
    gaps = first / size - (total - first) / len(worse)
    seen = gaps[0]
    slack = 1e-12 * both.abs().max().clamp(min=1e-300)
    return float(wins.mean()), float((gaps >= seen - slack).double().mean())


def smallest_difference(readings: Tensor, power: float = 0.8, level: float = 0.05) -> float:
    """The difference between two dictionaries, S seeds each, that a test at `level` finds with `power`.

    `(t_(1 - level/2) + t_power) sqrt(2 v / S)` with 2S - 2 degrees of freedom, two-sided; v, for readings
    (S, parts), is the variance over seeds of the mean over parts, but at least what the spread over parts
    makes of that mean.
    """
    from scipy.stats import t

    seeds, parts = readings.shape
    if seeds < 2:
        return math.nan
    between = readings.mean(1).var()
    within = readings.var(1).mean() / parts if parts > 1 else torch.zeros(())
    spread = math.sqrt(2 * float(torch.maximum(between, within)) / seeds)
    free = 2 * seeds - 2
    return float(t.ppf(1 - level / 2, free) + t.ppf(power, free)) * spread


def agreement(
    values: Tensor, truth: Tensor, resamples: int = 999, seed: int = 0
) -> tuple[float, float, float]:
    """Rank correlation of a metric with truth over dictionaries, with a 95% interval over resampled ones."""
    there = ~(values.isnan() | truth.isnan())
    values, truth = values[there].double(), truth[there].double()
    if len(values) < 4:
        return math.nan, math.nan, math.nan
    drawn = integers(Key(seed) / "agreement", torch.arange(resamples), 0, len(values), len(values))
    found = spearman(values[drawn], truth[drawn])
    low, high = torch.nanquantile(found, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(spearman(values[None], truth[None])[0]), low, high


def concordance(values: dict[str, Tensor], chains: Sequence[Sequence[str]]) -> float:
    """The share of pairs whose order is known that oriented readings (seeds,) have right, seed by seed."""
    found = [
        (values[one] > values[other]).double() + 0.5 * (values[one] == values[other]).double()
        for chain in chains
        for one, other in combinations([name for name in chain if name in values], 2)
    ]
    return float(torch.cat(found).mean()) if found else math.nan
