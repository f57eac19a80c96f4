"""Betting, wins, groups and probabilities of being best, written as their definitions read."""

from __future__ import annotations

import math
import random
from itertools import permutations, product


def wealth(units: list[float], stakes: tuple[float, ...]) -> list[float]:
    purses = [1.0 / len(stakes)] * len(stakes)
    path = []
    for unit in units:
        if not math.isnan(unit):
            purses = [purse * (1 + s * (2 * unit - 1)) for purse, s in zip(purses, stakes, strict=True)]
        path.append(sum(purses))
    return path


def betting_p(units: list[float], stakes: tuple[float, ...]) -> float:
    return 1 / max([1.0, *wealth(units, stakes)])


def win_unit(own: float, other: float, grid: float, scale: float, no_map: bool, other_no_map: bool) -> float:
    if no_map or other_no_map:
        return 0.5 if no_map and other_no_map else float(other_no_map)
    if math.isnan(own) or math.isnan(other):
        return 0.5
    if own == other:
        return 0.5
    size = max(abs(own), abs(other), scale)
    if math.isfinite(size) and abs(own - other) <= grid * size:
        return 0.5
    return float(own > other)


def member_units(units: list[list[list[float]]], members: list[int]) -> list[list[float]]:
    """Of each member, in each sample, the mean over the other members."""
    samples = len(units[0][0])
    return [
        [sum(units[a][b][n] for b in members if b != a) / (len(members) - 1) for n in range(samples)]
        for a in members
    ]


def spread(rows: list[list[float]]) -> float:
    means = [sum(row) / len(row) for row in rows]
    return max(means) - min(means)


def exact_range_p(rows: list[list[float]]) -> float:
    """Every order of the methods in every sample."""
    observed, beyond, count = spread(rows), 0, 0
    columns = list(zip(*rows, strict=True))
    for orders in product(permutations(range(len(rows))), repeat=len(columns)):
        shuffled = [
            [column[o[m]] for column, o in zip(columns, orders, strict=True)] for m in range(len(rows))
        ]
        beyond += spread(shuffled) >= observed - 1e-12
        count += 1
    return beyond / count


def best_of_two(difference: list[float], scale: float, draws: int, seed: int) -> float:
    """The chance that the mean of a difference of two methods' units is above 0, by weighing prior draws.

    The one contrast is d = difference / sqrt 2.
    """
    rng = random.Random(seed)
    n = len(difference)
    mean = sum(difference) / n
    variance = sum((d - mean) ** 2 for d in difference) / (n - 1) / n
    contrast, variance = mean / math.sqrt(2), variance / 2
    above = total = 0.0
    for _ in range(draws):
        chi2 = rng.gammavariate((n - 1) / 2, 2)
        doubt = variance * (n - 1) / chi2
        tau2 = (scale * math.tan(math.pi / 2 * rng.random())) ** 2
        weight = math.exp(-0.5 * contrast**2 / (tau2 + doubt)) / math.sqrt(tau2 + doubt)
        keep = tau2 / (tau2 + doubt)
        above += weight * 0.5 * math.erfc(-keep * contrast / math.sqrt(2 * keep * doubt))
        total += weight
    return above / total
