"""The verdict's arithmetic written slowly: loops over samples, metrics, draws and methods."""

from __future__ import annotations

import math


def unit(own: list[float], others: list[list[float]], share: float, scale: float) -> float:
    """One sample: `own` scores by metric against draws of one rival, whose scores are by metric too."""
    won, count = 0.0, 0
    for other in others:
        for a, b in zip(own, other, strict=True):
            count += 1
            if math.isnan(a) or math.isnan(b) or abs(a - b) <= share * max(abs(a), abs(b), scale):
                won += 0.5
            elif a > b:
                won += 1.0
    return won / count


def betting(units: list[float], stakes: tuple[float, ...] = (0.25, 0.5, 0.75, 0.95)) -> float:
    """The p-value of one sequence of units: one over the largest wealth of four gamblers together."""
    wealth, largest = [1.0] * len(stakes), 1.0
    for one in units:
        wealth = [w * (1 + stake * (2 * one - 1)) for w, stake in zip(wealth, stakes, strict=True)]
        largest = max(largest, sum(wealth) / len(wealth))
    return 1 / largest


def holm(p: list[float]) -> list[float]:
    """Holm's adjusted p-values."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    out, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, (len(p) - rank) * p[i])
        out[i] = min(1.0, highest)
    return out
