"""Concordance of scores with planted damage, pair by pair in plain loops, from Somers' definition."""

from __future__ import annotations

import math


def somers_d(scores, maps, ties=0.0):
    """Right less wrong pairs over pairs of maps that differ; scores are listed by rising damage."""
    if all(math.isnan(score) for score in scores):
        return math.nan
    right = wrong = pairs = 0
    for i in range(len(scores)):
        for j in range(i + 1, len(scores)):
            if list(maps[i]) == list(maps[j]):
                continue
            pairs += 1
            if abs(scores[i] - scores[j]) <= ties:
                continue
            right += scores[i] > scores[j]
            wrong += scores[i] < scores[j]
    return (right - wrong) / pairs if pairs else math.nan
