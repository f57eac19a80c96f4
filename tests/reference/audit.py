"""The verdict's arithmetic written slowly: loops over samples, metrics and pairs."""

from __future__ import annotations

import itertools
import math

import numpy as np


def shares_beaten(utility: np.ndarray) -> np.ndarray:
    """(E, N) -> (E, N): rivals beaten, ties half; a missing value loses to all and ties with the missing."""
    methods, samples = utility.shape
    out = np.full((methods, samples), np.nan)
    for i in range(samples):
        column = utility[:, i]
        if np.isnan(column).all():
            continue
        for a in range(methods):
            won = 0.0
            for b in range(methods):
                if a == b:
                    continue
                gone_a, gone_b = math.isnan(column[a]), math.isnan(column[b])
                if gone_a and gone_b:
                    won += 0.5
                elif gone_a:
                    won += 0.0
                elif gone_b:
                    won += 1.0
                else:
                    won += 1.0 if column[a] > column[b] else 0.5 if column[a] == column[b] else 0.0
            out[a, i] = won / (methods - 1)
    return out


def weighed(shares: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(E, M, N) and (M,) -> (E, N), over the metrics that have a value."""
    methods, metrics, samples = shares.shape
    out = np.full((methods, samples), np.nan)
    for e, i in itertools.product(range(methods), range(samples)):
        top = bottom = 0.0
        for m in range(metrics):
            if not math.isnan(shares[e, m, i]):
                top += weights[m] * shares[e, m, i]
                bottom += weights[m]
        if bottom > 0:
            out[e, i] = top / bottom
    return out


def kendall_w(scores: np.ndarray) -> float:
    """W by its definition with ties: 12 S / (m^2 (n^3 - n) - m T)."""
    from scipy.stats import rankdata

    judges, things = scores.shape
    ranks = np.stack([rankdata(row) for row in scores])
    sums = ranks.sum(0)
    s = ((sums - sums.mean()) ** 2).sum()
    ties = 0.0
    for row in scores:
        _, counts = np.unique(row, return_counts=True)
        ties += (counts**3 - counts).sum()
    return 12 * s / (judges**2 * (things**3 - things) - judges * ties)
