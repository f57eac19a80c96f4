"""Complexity and localisation of one map, as one would do it by hand."""

import math


def gini(e):
    small_first = sorted(abs(v) for v in e)
    d, total = len(e), sum(small_first)
    if total == 0:
        return math.nan
    return sum((2 * (i + 1) - d - 1) * v for i, v in enumerate(small_first)) / (d * total)


def entropy(e):
    total = sum(abs(v) for v in e)
    if total == 0:
        return math.nan
    shares = [abs(v) / total for v in e]
    return -sum(p * math.log(p) for p in shares if p > 0)


def histogram_entropy(e, bins):
    low, high = min(e), max(e)
    counts = [0] * bins
    for v in e:
        at = int((v - low) / (high - low) * bins) if high > low else 0
        counts[min(at, bins - 1)] += 1
    return -sum(c / len(e) * math.log(c / len(e)) for c in counts if c)


def effective(e, threshold):
    scale = math.sqrt(sum(v * v for v in e) / len(e))
    return sum(abs(v) / scale > threshold for v in e)


def top_k(e, mask, k):
    """The mean over all rankings that agree: features that tie at the border share its places."""
    border = sorted(e, reverse=True)[k - 1]
    above = [bool(m) for v, m in zip(e, mask, strict=True) if v > border]
    equal = [bool(m) for v, m in zip(e, mask, strict=True) if v == border]
    return (sum(above) + (k - len(above)) * sum(equal) / len(equal)) / k


def pointing(e, mask):
    return top_k(e, mask, 1)


def rank_accuracy(e, mask):
    return top_k(e, mask, sum(map(bool, mask)))


def mass(e, mask):
    positive = [max(v, 0.0) for v in e]
    return sum(p for p, m in zip(positive, mask, strict=True) if m) / sum(positive)


def auc(e, mask):
    inside = [v for v, m in zip(e, mask, strict=True) if m]
    outside = [v for v, m in zip(e, mask, strict=True) if not m]
    wins = sum((a > b) + 0.5 * (a == b) for a in inside for b in outside)
    return wins / (len(inside) * len(outside))
