"""Metrics of other packages, each written down once more from its published definition."""

import numpy as np
from sklearn.metrics import auc, precision_recall_curve
from sklearn.neighbors import NearestNeighbors


def top(e, k):
    """The k largest, as 0 and 1."""
    chosen = np.zeros(len(e), dtype=bool)
    chosen[np.argsort(e)[-k:]] = True
    return chosen


def token_iou(e, mask, k):
    chosen = top(e, k)
    return (chosen & mask).sum() / (chosen | mask).sum()


def token_f1(e, mask, k):
    chosen = top(e, k)
    shared = (chosen & mask).sum()
    precision, recall = shared / chosen.sum(), shared / mask.sum()
    return 0.0 if shared == 0 else 2 * precision * recall / (precision + recall)


def auprc(e, mask):
    precision, recall, _ = precision_recall_curve(mask, e)
    return auc(recall, precision)


def stretched(e):
    size = np.abs(e)
    return (size - size.min()) / (size.max() - size.min())


def average_drop(before, after):
    return max(0.0, before - after) / before


def average_increase(before, after):
    return float(after > before)


def average_gain(before, after):
    return max(0.0, after - before) / (1 - before)


def adcc(mask, mask_again, before, after):
    coherency = (np.corrcoef(mask, mask_again)[0, 1] + 1) / 2
    return 3 / (1 / coherency + 1 / (1 - mask.mean()) + 1 / (1 - average_drop(before, after)))


def axe(e, x, rows, predicted, own, k):
    """How often the k nearest rows in the n features of largest |e| vote for the row's own class."""
    first, hits = np.argsort(-np.abs(e)), []
    for n in range(1, len(e)):
        near = NearestNeighbors(n_neighbors=k).fit(rows[:, first[:n]]).kneighbors(x[None, first[:n]])[1][0]
        hits.append(np.bincount(predicted[near]).argmax() == own)
    return np.mean(hits)
