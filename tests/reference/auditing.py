"""What an audit measures and refuses by, in loops: Shapley values with errors, hidden features, grades."""

import math

import numpy as np
from scipy.stats import binom


def fitted_pairs(kept, responses, total):
    """Shapley values and HC3 errors of one sample: a constrained fit by elimination of the last feature.

    `kept` (P, D) booleans, `responses` (P, 2) without the set and without the rest, `total` a number.
    """
    pairs, features = kept.shape
    share = kept.mean(1)
    # sum phi = total: phi_i = total / D + d_i with sum d = 0, so the last d is minus the sum of the others
    columns = [kept[:, i].astype(float) - kept[:, -1] for i in range(features - 1)]
    columns += [share - 0.5, (share - 0.5) ** 3]
    X = np.stack(columns, 1)
    y = (responses[:, 0] - responses[:, 1]) / 2 - (share - 0.5) * total
    solved = np.linalg.pinv(X)
    left = y - X @ (solved @ y)
    leverage = np.array([X[p] @ solved[:, p] for p in range(pairs)])
    meat = np.diag((left / (1 - leverage)) ** 2)
    full = np.vstack([solved[: features - 1], -solved[: features - 1].sum(0)])
    return total / features + full @ y, np.sqrt(np.diag(full @ meat @ full.T))


def hidden(maps, effects, errors, valid=None):
    """Whether each feature is strong in a sample and testable, and whether the map hides it."""
    tested, found = np.zeros(maps.shape, bool), np.zeros(maps.shape, bool)
    for n, row in enumerate(maps):
        there = [i for i in range(len(row)) if valid is None or valid[n, i]]
        if any(math.isnan(row[i]) for i in there):
            continue
        positive_only = all(row[i] >= 0 for i in there)
        top = max(there, key=lambda i: abs(effects[n, i]))
        for i in there:
            own, error = abs(effects[n, i]), errors[n, i]
            apart = 0.5 * error if i == top else math.hypot(error, 0.5 * errors[n, top])
            if own - 0.5 * abs(effects[n, top]) <= 2 * apart or (positive_only and effects[n, i] <= 0):
                continue
            weaker = [
                k for k in there if abs(effects[n, k]) + 2 * math.hypot(errors[n, k], 0.5 * error) < 0.5 * own
            ]
            if len(weaker) < 4:
                continue
            tested[n, i] = True
            above = sum(
                1.0 if abs(row[k]) > abs(row[i]) else 0.5 if abs(row[k]) == abs(row[i]) else 0.0
                for k in weaker
            )
            found[n, i] = above >= len(weaker) / 2
    return tested, found


def lower_bound(hits, samples, level):
    """The share at which so many hits or more have just the chance `level`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if binom.sf(hits - 1, samples, middle) < level else (low, middle)
    return low if hits else 0.0
