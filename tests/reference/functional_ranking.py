"""Ranks, correlations and tests written as their definitions read, one row of plain floats at a time."""

from __future__ import annotations

import math
from itertools import combinations, product


def average_ranks(x: list[float]) -> list[float]:
    return [sum(b < a for b in x) + (sum(b == a for b in x) + 1) / 2 for a in x]


def pearson(x: list[float], y: list[float]) -> float:
    n = len(x)
    mx, my = math.fsum(x) / n, math.fsum(y) / n
    if min(x) == max(x) or min(y) == max(y):
        return math.nan
    top = math.fsum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return top / math.sqrt(math.fsum((a - mx) ** 2 for a in x) * math.fsum((b - my) ** 2 for b in y))


def spearman(x: list[float], y: list[float]) -> float:
    return pearson(average_ranks(x), average_ranks(y))


def partial_rank_correlation(x: list[float], y: list[float], given: list[float]) -> float:
    r_xy, r_xg, r_yg = spearman(x, y), spearman(x, given), spearman(y, given)
    bottom = (1 - r_xg**2) * (1 - r_yg**2)
    if math.isnan(bottom) or bottom < 1e-12:
        return math.nan
    return (r_xy - r_xg * r_yg) / math.sqrt(bottom)


def kendall_tau_b(x: list[float], y: list[float]) -> float:
    concordant = discordant = untied_x = untied_y = 0
    for i, j in combinations(range(len(x)), 2):
        untied_x += x[i] != x[j]
        untied_y += y[i] != y[j]
        agreement = (x[i] > x[j]) - (x[i] < x[j])
        agreement *= (y[i] > y[j]) - (y[i] < y[j])
        concordant += agreement > 0
        discordant += agreement < 0
    if untied_x == 0 or untied_y == 0:
        return math.nan
    return (concordant - discordant) / math.sqrt(untied_x * untied_y)


def rank_sums(differences: list[float]) -> tuple[float, float]:
    """R+ and R-, the ranks of zeros split between them."""
    ranks = average_ranks([abs(d) for d in differences])
    zeros = sum(r for r, d in zip(ranks, differences, strict=True) if d == 0) / 2
    plus = sum(r for r, d in zip(ranks, differences, strict=True) if d > 0)
    minus = sum(r for r, d in zip(ranks, differences, strict=True) if d < 0)
    return plus + zeros, minus + zeros


def sign_change_p(differences: list[float]) -> float:
    """The two-sided p-value by trying every change of signs."""
    observed = rank_sums(differences)[0]
    every = [
        rank_sums([s * abs(d) for s, d in zip(signs, differences, strict=True)])[0]
        for signs in product((-1, 1), repeat=len(differences))
    ]
    low = sum(r <= observed for r in every) / len(every)
    high = sum(r >= observed for r in every) / len(every)
    return min(1.0, 2 * min(low, high))


def holm(p: list[float]) -> list[float]:
    known = sorted(q for q in p if not math.isnan(q))
    adjusted: dict[float, float] = {}
    running = 0.0
    for i, q in enumerate(known):
        running = max(running, min(1.0, (len(known) - i) * q))
        adjusted.setdefault(q, running)
        adjusted[q] = max(adjusted[q], running)
    return [math.nan if math.isnan(q) else adjusted[q] for q in p]


def isotonic_fit(y: list[float], weights: list[float], increasing: bool) -> list[float]:
    """The min-max formula: f_k = max over i <= k of min over j >= k of the mean of y_i..y_j."""
    sign = 1 if increasing else -1
    n = len(y)

    def mean(i: int, j: int) -> float:
        w = weights[i : j + 1]
        return sign * math.fsum(a * b for a, b in zip(y[i : j + 1], w, strict=True)) / math.fsum(w)

    return [sign * max(min(mean(i, j) for j in range(k, n)) for i in range(k + 1)) for k in range(n)]
