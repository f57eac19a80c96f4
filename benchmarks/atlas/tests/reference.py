"""The measures of the atlas, one pair and one sample at a time."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import mean, variance


def nearness(values: list[float], truth: list[float]) -> float:
    """Pairs of features ordered as the truth does, less the others, over pairs that it tells apart."""
    right = wrong = pairs = 0
    for a, b in combinations(range(len(truth)), 2):
        if truth[a] != truth[b]:
            pairs += 1
            agrees = (values[a] - values[b]) * (truth[a] - truth[b])
            right, wrong = right + (agrees > 0), wrong + (agrees < 0)
    return (right - wrong) / pairs


def truth_first(truth: float, rivals: list[float], nearness: list[float], ties: float) -> float:
    """Duels won, ties and missing scores half; rivals that rank like the truth are left out."""
    won = []
    for rival, near in zip(rivals, nearness, strict=True):
        if near >= 1 - 1e-9:
            continue
        gap = truth - rival
        won.append(0.5 if math.isnan(gap) or abs(gap) <= ties else float(gap > 0))
    return mean(won)


def noise_share(scores: list[list[list[float]]]) -> float:
    """Of scores [seed][map][sample]: variance over seeds, over that plus the variance of the maps."""
    seeds, maps, samples = len(scores), len(scores[0]), len(scores[0][0])
    chance, between = [], []
    for n in range(samples):
        own = [[scores[s][m][n] for s in range(seeds)] for m in range(maps)]
        if any(math.isnan(value) for line in own for value in line):
            continue
        chance += [variance(line) for line in own]
        between.append(variance([mean(line) for line in own]))
    within = mean(chance)
    return within / (within + max(0.0, mean(between) - within / seeds)) if within > 0 else 0.0
