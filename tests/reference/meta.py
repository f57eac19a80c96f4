"""MetaQuantus' consistencies and the concordance with planted damage in plain loops."""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.stats import rankdata, wilcoxon


def p_value(a, b):
    """Two-sided Wilcoxon with zeros split; exact only up to 50 pairs without zeros and ties."""
    difference = np.abs(np.asarray(a) - np.asarray(b))
    plain = len(difference) <= 50 and (difference > 0).all() and len(set(difference)) == len(difference)
    method = "exact" if plain else "approx"
    return wilcoxon(a, b, zero_method="zsplit", method=method).pvalue


def iac(base, perturbed, kept, reverse):
    values = []
    for draw, keep in zip(perturbed, kept, strict=True):
        for before, after in zip(base, draw, strict=True):
            p = p_value(before[keep], after[keep]) if keep.sum() >= 6 else np.nan
            values.append(1 - p if reverse else p)
    return np.nanmean(values)


def unchanged(before, after):
    """The most explainers that keep their place in strict orders agreeing with both weak orders."""
    low, high = ([rankdata(own, method) for own in (before, after)] for method in ("min", "max"))
    place = np.arange(1, len(before) + 1)
    first, last = np.maximum(*low)[:, None], np.minimum(*high)[:, None]
    matched = maximum_bipartite_matching(csr_array((place >= first) & (place <= last)), perm_type="column")
    return [found >= 0 for found in matched]


def iec_nr(base, perturbed, kept):
    shares = []
    for draw, keep in zip(perturbed, kept, strict=True):
        same = []
        for i in np.flatnonzero(keep):
            same += unchanged(base[:, i], draw[:, i])
        shares.append(np.mean(same) if keep.sum() >= 6 else np.nan)
    return np.nanmean(shares)


def iec_ar(base, perturbed, kept, lower_is_better):
    shares = []
    for draw, keep in zip(perturbed, kept, strict=True):
        worse = []
        for i in np.flatnonzero(keep):
            for j in range(len(base)):
                worse.append(draw[j, i] > base[j, i] if lower_is_better else draw[j, i] < base[j, i])
        shares.append(np.mean(worse) if keep.sum() >= 6 else np.nan)
    return np.nanmean(shares)


def iec_nr_averaged(base, perturbed, kept):
    same = []
    for i in range(base.shape[1]):
        if kept[:, i].any():
            mean = perturbed[kept[:, i], :, i].mean(0)
            same += unchanged(base[:, i], mean)
    return np.mean(same)


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
