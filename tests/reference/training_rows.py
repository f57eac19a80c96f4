"""Training-row relevance, slowly: exact least squares, one retraining at a time."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr


def lds(maps: np.ndarray, kept: np.ndarray, answers: np.ndarray) -> list[float]:
    """Spearman's correlation per test of summed kept relevance and the outputs of the retrained models."""
    found = []
    for test in range(len(maps)):
        sums = [sum(maps[test, row] for row in np.flatnonzero(rows)) for rows in kept]
        found.append(float(spearmanr(sums, answers[:, test]).correlation))
    return found


def ordered(maps: np.ndarray, kept: np.ndarray, answers: np.ndarray) -> list[float]:
    """The share of tests in which each two subsets are put in the order of their outputs; ties are half."""
    found = []
    for first in range(0, len(kept) - 1, 2):
        right = 0.0
        for test in range(len(maps)):
            sums = [maps[test][kept[k]].sum() for k in (first, first + 1)]
            product = (sums[0] - sums[1]) * (answers[first, test] - answers[first + 1, test])
            right += 1.0 if product > 0 else 0.5 if product == 0 else 0.0
        found.append(right / len(maps))
    return found


def falls(x: np.ndarray, y: np.ndarray, tests: np.ndarray) -> np.ndarray:
    """The fall (T, N) of least-squares predictions when one row is left out, each fitted anew."""
    whole = np.linalg.lstsq(x, y, rcond=None)[0]
    out = np.empty((len(tests), len(x)))
    for row in range(len(x)):
        others = np.arange(len(x)) != row
        without = np.linalg.lstsq(x[others], y[others], rcond=None)[0]
        out[:, row] = tests @ (whole - without)
    return out


def first_order(x: np.ndarray, y: np.ndarray, tests: np.ndarray) -> np.ndarray:
    """The same to first order: x_test (X'X)^-1 x_row (y_row - f(x_row))."""
    inverse = np.linalg.inv(x.T @ x)
    left = y - x @ inverse @ x.T @ y
    return tests @ inverse @ x.T * left
