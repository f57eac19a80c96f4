"""The fidelity metrics and their ranking study: one sample, one size, one draw at a time."""

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from veridical.core import key as keyed
from veridical.core.key import Key


def size_of(n: int, level: float) -> int:
    """n * level rounded half up, within 1..n-1."""
    exact = Fraction(str(level)) * n
    return int(min(max(math.floor(exact + Fraction(1, 2)), 1), n - 1))


def counts(n: int, s: int, alpha: float, beta: float | None) -> tuple[int, int]:
    """k+ and k- in exact arithmetic (eq. 3, 4 and 6)."""
    a = Fraction(str(alpha))
    plus, minus = math.floor(a * s), math.ceil(a * (n - s))
    if beta is None:
        return plus, minus
    cap = min(n, max(1, math.floor(Fraction(str(beta)) * n)))
    return min(plus, cap), min(minus, cap)


def removed_features(
    scores: np.ndarray, s: int, k: int, sign: str, key: Key, sample: int, draw: int
) -> set[int]:
    """The k features of the part that hold the smallest tickets of this (sample, draw)."""
    import torch

    # equal scores: the later feature counts as the stronger one
    ranking = sorted(range(len(scores)), key=lambda v: (-scores[v], -v))
    part = set(ranking[:s] if sign == "plus" else ranking[s:])
    tickets = keyed.random_keys(key / "removal", torch.tensor([sample]), draw, len(scores))[0].tolist()
    return set(sorted(part, key=lambda v: tickets[v])[:k])


def falls(
    predict: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    y: int,
    scores: np.ndarray,
    levels: Sequence[float],
    alpha: float,
    beta: float | None,
    draws: int,
    sign: str,
    key: Key,
    sample: int,
) -> tuple[list[float], list[float]]:
    """Indicator and probability falls of one sample over sizes; a removed feature becomes 0."""
    n = len(scores)
    clean = predict(x)
    indicator, probability = [], []
    for level in levels:
        s = size_of(n, level)
        k = counts(n, s, alpha, beta)[0 if sign == "plus" else 1]
        right, chance = [], []
        for draw in range(draws):
            masked = x.copy()
            for v in removed_features(scores, s, k, sign, key, sample, draw):
                masked[..., v] = 0
            answer = predict(masked)
            right.append(float(np.argmax(answer) == y))
            chance.append(float(answer[y]))
        if k == 0:
            indicator.append(math.nan)
            probability.append(math.nan)
        else:
            indicator.append(float(np.argmax(clean) == y) - sum(right) / draws)
            probability.append(float(clean[y]) - sum(chance) / draws)
    return indicator, probability


def tier_parts(tiers: Sequence[int], s: int) -> list[int]:
    """How many of the s strongest features lie in each tier (eq. 7)."""
    parts, left = [], s
    for size in tiers:
        parts.append(min(size, left))
        left -= parts[-1]
    return parts


def expected_fall(tiers: Sequence[int], g: Callable[[Sequence[int]], Fraction], s: int, k: int) -> Fraction:
    """g(c) - E[g(c - J)], J multivariate hypergeometric: k of the s strongest (proof of theorem 1)."""
    parts = tier_parts(tiers, s)
    total = Fraction(0)
    for drawn in itertools.product(*[range(min(part, k) + 1) for part in parts]):
        if sum(drawn) != k:
            continue
        ways = math.prod(math.comb(part, j) for part, j in zip(parts, drawn, strict=True))
        left = [size - j for size, j in zip(tiers, drawn, strict=True)]
        total += Fraction(ways, math.comb(s, k)) * g(left)
    return g(list(tiers)) - total


def micro_rank(correlations: dict[str, list[float]], sign: int) -> dict[str, float]:
    """Mean rank over sizes: ties get the best rank, undefined ranks last."""
    out = dict.fromkeys(correlations, 0.0)
    sizes = len(next(iter(correlations.values())))
    for place in range(sizes):
        scores = {
            name: -math.inf if math.isnan(row[place]) else sign * row[place]
            for name, row in correlations.items()
        }
        for name in correlations:
            out[name] += (1 + sum(other > scores[name] for other in scores.values())) / sizes
    return out
