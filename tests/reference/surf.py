"""SURF written out slowly: one sample, one output, one concept at a time."""

from __future__ import annotations

import math

import numpy as np


def surrogate(h, vectors, importances, bias, project):
    """Eq. 10 with the bias added back, for embeddings (N, D) and vectors (C, K, D)."""
    answers = np.zeros((len(h), len(vectors)))
    for n in range(len(h)):
        for i in range(len(vectors)):
            codes = project(h[n], vectors[i])
            answers[n, i] = sum(importances[i][k] * codes[k] for k in range(len(codes))) + bias[i]
    return answers


def softmax(y):
    top = max(y)
    powers = [math.exp(v - top) for v in y]
    return [p / sum(powers) for p in powers]


def surf_mae(y, guess):
    total = 0.0
    for n in range(len(y)):
        for i in range(len(y[n])):
            total += abs(y[n][i] - guess[n][i])
    return total / (len(y) * len(y[0]))


def surf_emd(y, guess):
    total = 0.0
    for n in range(len(y)):
        p, q = softmax(y[n]), softmax(guess[n])
        total += sum(abs(a - b) for a, b in zip(p, q, strict=True))
    return total / (2 * len(y))


def norm_l1(y, guess, labels):
    parts = [abs(y[n][t] - guess[n][t]) / abs(y[n][t]) for n, t in enumerate(labels)]
    return sum(parts) / len(parts)


def top1(y, guess):
    return sum(int(np.argmax(a) == np.argmax(b)) for a, b in zip(y, guess, strict=True)) / len(y)


def normalised_accuracy(y, guess, labels):
    chance = 1 / len(y[0])
    ours = sum(int(np.argmax(g) == t) for g, t in zip(guess, labels, strict=True)) / len(y)
    theirs = sum(int(np.argmax(a) == t) for a, t in zip(y, labels, strict=True)) / len(y)
    return (ours - chance) / (theirs - chance)


def rebuild_mse(h, vectors, project):
    """The squared error of rebuilt embeddings, a mean over samples, outputs and dimensions."""
    total = 0.0
    for row in h:
        for own in vectors:
            codes = project(row, own)
            rebuilt = sum(codes[k] * own[k] for k in range(len(own)))
            total += float(((row - rebuilt) ** 2).mean())
    return total / (len(h) * len(vectors))


def nnls_by_enumeration(h, vectors):
    """The best of all supports: least squares on each, kept where no coefficient is negative."""
    count = len(vectors)
    best, least = np.zeros(count), float((h**2).sum())
    for support in range(1, 2**count):
        pick = [k for k in range(count) if support >> k & 1]
        found = np.linalg.lstsq(vectors[pick].T, h, rcond=None)[0]
        error = float(((vectors[pick].T @ found - h) ** 2).sum())
        if (found >= 0).all() and error < least - 1e-12:
            least = error
            best = np.zeros(count)
            best[pick] = found
    return best


def jansen_total(pull, a, b):
    """Total Sobol indices of y(m) = sum m_k pull_k, with every masked answer computed by itself."""
    y_a = [sum(row[k] * pull[k] for k in range(len(pull))) for row in a]
    mean = sum(y_a) / len(y_a)
    variance = sum((v - mean) ** 2 for v in y_a) / len(y_a)
    out = []
    for k in range(len(pull)):
        total = 0.0
        for j in range(len(a)):
            mixed = list(a[j])
            mixed[k] = b[j][k]
            total += (y_a[j] - sum(mixed[m] * pull[m] for m in range(len(pull)))) ** 2
        out.append(total / (2 * len(a) * variance))
    return out


def cdisco(rows, weight, count):
    """Singular vectors, each oriented, scored by gradient x activation, z-scored over all."""
    _, _, right = np.linalg.svd(rows, full_matrices=False)
    strength, vectors = [], []
    for v in right:
        v = -v if rows.mean(0) @ v < 0 else v
        vectors.append(v)
        strength.append(np.mean([(weight @ v) * (h @ v) for h in rows]))
    strength = np.array(strength)
    scores = (strength - strength.mean()) / strength.std()
    pick = np.argsort(-np.abs(scores))[:count]
    return [vectors[k] for k in pick], scores[pick]
