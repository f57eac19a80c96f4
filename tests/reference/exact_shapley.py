"""Shapley values by the definition: every order of joining in, on average (features 0 when absent)."""

from itertools import combinations
from math import factorial

import numpy as np


def shapley(game, x):
    """The Shapley value of each feature of x for game(row) against the all-zero row."""
    n = len(x)
    values = np.zeros(n)
    for i in range(n):
        others = [j for j in range(n) if j != i]
        for size in range(n):
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            for team in combinations(others, size):
                without = np.zeros(n)
                without[list(team)] = x[list(team)]
                joined = without.copy()
                joined[i] = x[i]
                values[i] += weight * (game(joined) - game(without))
    return values
