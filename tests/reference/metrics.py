"""Scores of maps, of moved inputs and of randomised models, as one would do it by hand."""

import copy
import math

import numpy as np
import torch

from tests.reference.functional import entropy, gini, pearson, spearman

__all__ = ["entropy", "gini", "pearson", "spearman"]


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


def rms(e):
    scale = math.sqrt(sum(float(v) ** 2 for v in e) / len(e))
    return np.array([float(v) / scale for v in e]) if scale else np.zeros(len(e))


def norm(v):
    return math.sqrt(sum(float(a) ** 2 for a in np.ravel(v)))


def sensitivities(x, clean, moved, relative_to="input"):
    """clean: (V,) of one sample, moved: list of (V,) a draw; one number a draw."""
    by = {"input": norm(x), "nothing": 1.0, "explanation": norm(rms(clean))}[relative_to]
    return [norm(rms(clean) - rms(m)) / by for m in moved]


def lipschitz(x, clean, neighbours, moved):
    return max(norm(rms(clean) - rms(m)) / norm(x - n) for n, m in zip(neighbours, moved, strict=True))


def away_from_zero(v, epsilon):
    return v + (-epsilon if v < 0 else epsilon)


def relative(before, after, epsilon):
    return norm([(b - a) / away_from_zero(b, epsilon) for b, a in zip(before, after, strict=True)])


def stability(clean, moved, change_of_reading, same, epsilon):
    """change_of_reading and same: one entry a draw. NaN if no draw keeps the prediction."""
    best = math.nan
    for m, change, keeps in zip(moved, change_of_reading, same, strict=True):
        if keeps:
            ratio = relative(rms(clean), rms(m), epsilon) / max(change, epsilon)
            best = ratio if math.isnan(best) else max(best, ratio)
    return best


def move_right(image, pixels, blank=0.0):
    """image (C, H, W), pixel by pixel."""
    out = np.full(image.shape, blank)
    channels, height, width = image.shape
    for c in range(channels):
        for i in range(height):
            for j in range(width - pixels):
                out[c, i, j + pixels] = image[c, i, j]
    return out


def top_signed(e, top):
    """The set of (feature, sign) of the largest |e|, ties to the first."""
    ranked = sorted(range(len(e)), key=lambda i: (-abs(e[i]), i))[:top]
    return {(i, int(np.sign(e[i]))) for i in ranked}


def consistency(e, own, others, other_classes, top):
    same = [c for o, c in zip(others, other_classes, strict=True) if top_signed(o, top) == top_signed(e, top)]
    return sum(c == own for c in same) / len(same) if same else math.nan


def walk(names, order):
    """Lists of layers randomised at each step; never an empty one."""
    if order == "independent":
        return [[n] for n in names]
    names = names[::-1] if order == "top_down" else names
    return [names[: i + 1] for i in range(len(names))]


def with_parameters(model, parameters):
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in twin.named_parameters():
            if name in parameters:
                value.copy_(parameters[name])
    return twin
