"""The faithfulness metrics written out slowly from their papers: one sample, one mask, one loop at a time.

`ask(x)` gives the response of the explained output to one input vector; `fill` is the vector that takes the
place of removed features. Nothing here is shared with the package.
"""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np

from tests.reference.functional import pearson, spearman


def without(x, fill, gone):
    out = x.copy()
    for i in gone:
        out[i] = fill[i]
    return out


def descending(e):
    """Most relevant first; of equal ones the later first, as reversing a stable ascending sort gives."""
    return list(np.argsort(e, kind="stable")[::-1])


def trapezoid(y, x):
    return sum((y[i] + y[i + 1]) * (x[i + 1] - x[i]) / 2 for i in range(len(y) - 1))


def flipping_curve(ask, x, fill, order, per_step):
    curve, share = [ask(x)], [0.0]
    for k in range(per_step, len(order) + per_step, per_step):
        gone = order[: min(k, len(order))]
        curve.append(ask(without(x, fill, gone)))
        share.append(len(gone) / len(order))
    return curve, share


def pixel_flipping(ask, x, e, fill, per_step=1, least_first=False):
    order = descending(e)[::-1] if least_first else descending(e)
    return trapezoid(*flipping_curve(ask, x, fill, order, per_step))


def insertion(ask, x, e, fill, per_step=1):
    order, curve, share = descending(e), [], []
    for k in range(0, len(order) + per_step, per_step):
        k = min(k, len(order))
        curve.append(ask(without(x, fill, order[k:])))
        share.append(k / len(order))
    return trapezoid(curve, share)


def monotonicity(ask, x, e, fill):
    order = descending(e)[::-1]
    curve = [ask(without(x, fill, order[k:])) for k in range(len(order) + 1)]
    return float(all(curve[i + 1] >= curve[i] for i in range(len(order))))


def faithfulness_estimate(ask, x, e, fill, per_step=1):
    order, relevance, falls = descending(e), [], []
    for k in range(0, len(order), per_step):
        group = order[k : k + per_step]
        relevance.append(sum(e[i] for i in group))
        falls.append(ask(x) - ask(without(x, fill, group)))
    return pearson(relevance, falls)


def monotonicity_correlation(ask, x, e, fill):
    relevance = [abs(v) for v in e]
    change = [(ask(x) - ask(without(x, fill, [i]))) ** 2 for i in range(len(e))]
    return spearman(relevance, change)


def subset_correlation(ask, x, e, fill, subsets):
    relevance = [sum(e[i] for i in s) for s in subsets]
    falls = [ask(x) - ask(without(x, fill, s)) for s in subsets]
    return pearson(relevance, falls)


def sensitivity_n(ask, x, e, fill, subsets_by_size):
    return float(np.mean([subset_correlation(ask, x, e, fill, subsets) for subsets in subsets_by_size]))


def infidelity(ask, x, e, fill, subsets, optimal=False):
    predicted, change = [], []
    for s in subsets:
        taken = x - without(x, fill, s)
        predicted.append(float(taken @ e))
        change.append(ask(x) - ask(x - taken))
    predicted, change = np.array(predicted), np.array(change)
    if optimal:
        predicted = predicted * (predicted * change).mean() / (predicted**2).mean()
    return float(((predicted - change) ** 2).mean())


def region_order(e, labels, mean=False):
    regions = sorted(set(labels))
    worth = [(np.mean if mean else np.sum)([e[i] for i in range(len(e)) if labels[i] == r]) for r in regions]
    ranked = sorted(range(len(regions)), key=lambda r: -worth[r])
    return [[i for i in range(len(e)) if labels[i] == regions[r]] for r in ranked]


def region_curve(ask, x, fill, regions):
    curve, gone = [ask(x)], []
    for region in regions:
        gone = gone + region
        curve.append(ask(without(x, fill, gone)))
    return curve


def region_perturbation(ask, x, e, fill, labels, count):
    curve = region_curve(ask, x, fill, region_order(e, labels)[:count])
    return sum(curve[0] - y for y in curve[1:]) / len(curve)


def selectivity(ask, x, e, fill, labels):
    curve = region_curve(ask, x, fill, region_order(e, labels))
    return trapezoid(curve, [k / (len(curve) - 1) for k in range(len(curve))])


def irof(ask, x, e, fill, labels):
    curve = region_curve(ask, x, fill, region_order(e, labels, mean=True))
    relative = [y / curve[0] for y in curve]
    return 1 - trapezoid(relative, [k / (len(curve) - 1) for k in range(len(curve))])


def sufficiency(maps, predictions, others, their_predictions, neighbours):
    out = []
    for e, predicted in zip(maps, predictions, strict=True):
        distance = []
        for j, other in enumerate(others):
            cosine = e @ other / np.linalg.norm(e) / np.linalg.norm(other)
            distance.append((round(1 - cosine, 9), j))
        near = [j for _, j in sorted(distance)[:neighbours]]
        out.append(np.mean([their_predictions[j] == predicted for j in near]))
    return out


def harmonic_matrix(hole):
    """(D - W) among the missing pixels of a boolean (H, W) mask, and W from the kept ones, dense."""
    height, width = hole.shape
    missing = [tuple(p) for p in np.argwhere(hole)]
    index = {p: k for k, p in enumerate(missing)}
    inner = np.zeros((len(missing), len(missing)))
    outer = np.zeros((len(missing), height, width))
    for k, (r, c) in enumerate(missing):
        for down in (-1, 0, 1):
            for across in (-1, 0, 1):
                q = (r + down, c + across)
                if (down, across) == (0, 0) or not (0 <= q[0] < height and 0 <= q[1] < width):
                    continue
                weight = 2.0 if 0 in (down, across) else 1.0
                inner[k, k] += weight
                if q in index:
                    inner[k, index[q]] -= weight
                else:
                    outer[k][q] += weight
    return inner, outer


def nearest_rows(x, train, neighbours):
    """The rows nearest to x by distances of standardised columns, equal rows left out."""
    spread = [float(np.std(train[:, j])) or 1.0 for j in range(len(x))]
    apart = []
    for number, row in enumerate(train):
        distance = sum(((row[j] - x[j]) / spread[j]) ** 2 for j in range(len(x)))
        if any(row[j] != x[j] for j in range(len(x))):
            apart.append((distance, number))
    return [train[number] for _, number in sorted(apart)[:neighbours]]


def near_removal(ask, x, e, train, neighbours=8, step=0.2):
    """Over all orders of features of equal relevance."""
    rows, effects = nearest_rows(x, train, neighbours), []
    for i in range(len(e)):
        moved = [without(x, x + step * (row - x), [i]) for row in rows]
        effects.append(sum(abs(ask(one) - ask(x)) for one in moved) / neighbours)
    size, found = [abs(v) for v in e], []
    for order in permutations(range(len(e))):
        if all(size[a] >= size[b] for a, b in pairwise(order)):
            shares = [sum(effects[i] for i in order[: m + 1]) / sum(effects) for m in range(len(e))]
            found.append(sum(shares) / len(shares))
    return sum(found) / len(found)
