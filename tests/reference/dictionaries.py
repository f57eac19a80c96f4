"""Slow rewrites of everything about dictionaries: one row, one pair, one atom at a time."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np


def train_topk(
    rows: np.ndarray, atoms: np.ndarray, batches: list[np.ndarray], active: int, rate: float, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[float]]:
    """Gradients by hand, Adam as its paper prints it, a rate along a cosine; no atom is revived."""
    scale = float(np.sqrt((rows**2).mean()))
    x_all = rows / scale
    theta = {
        "encoder": atoms.copy(),
        "bias": np.zeros(len(atoms)),
        "decoder": atoms.copy(),
        "centre": x_all.mean(0),
    }
    first = {name: np.zeros_like(value) for name, value in theta.items()}
    second = {name: np.zeros_like(value) for name, value in theta.items()}
    losses = []
    for step in range(steps):
        x = x_all[batches[step]]
        grads = {name: np.zeros_like(value) for name, value in theta.items()}
        loss = 0.0
        size = x.size
        for row in x:
            before = theta["encoder"] @ (row - theta["centre"]) + theta["bias"]
            positive = np.maximum(before, 0)
            kept = np.argsort(-positive, kind="stable")[:active]
            rebuilt = theta["centre"] + sum(positive[k] * theta["decoder"][k] for k in kept)
            left = row - rebuilt
            loss += float((left**2).sum()) / size
            out = -2 * left / size
            grads["centre"] += out
            for k in kept:
                grads["decoder"][k] += positive[k] * out
                if before[k] > 0:
                    slope = float(out @ theta["decoder"][k])
                    grads["encoder"][k] += slope * (row - theta["centre"])
                    grads["bias"][k] += slope
                    grads["centre"] -= slope * theta["encoder"][k]
        losses.append(loss)
        now = rate * 0.5 * (1 + np.cos(np.pi * step / steps))
        for name, grad in grads.items():
            first[name] = 0.9 * first[name] + 0.1 * grad
            second[name] = 0.999 * second[name] + 0.001 * grad**2
            up = first[name] / (1 - 0.9 ** (step + 1))
            down = np.sqrt(second[name] / (1 - 0.999 ** (step + 1))) + 1e-8
            theta[name] = theta[name] - now * up / down
        theta["decoder"] /= np.linalg.norm(theta["decoder"], axis=1, keepdims=True)
    return theta["encoder"], theta["bias"] * scale, theta["decoder"], theta["centre"] * scale, losses


def best_matching(atoms: np.ndarray, features: np.ndarray) -> float:
    """The largest sum of absolute cosines over every one-to-one matching; as many atoms as features."""
    unit = [a / np.linalg.norm(a) for a in atoms]
    other = [f / np.linalg.norm(f) for f in features]
    sums = [sum(abs(unit[i] @ other[j]) for i, j in enumerate(p)) for p in permutations(range(len(other)))]
    return max(sums)


def firing(active: np.ndarray, fires: np.ndarray) -> tuple[float, float, float]:
    """Precision, recall and F1 of one atom for one feature, counted row by row."""
    hit = sum(bool(a and f) for a, f in zip(active, fires, strict=True))
    said, there = int(active.sum()), int(fires.sum())
    precision = hit / said if said else 0.0
    recall = hit / there if there else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return precision, recall, f1


def auc(answers: np.ndarray, labels: np.ndarray) -> float:
    """The share of pairs (with, without) in the right order; ties count half."""
    on, off = answers[labels], answers[~labels]
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a in on for b in off]
    return float(np.mean(wins))


def balanced(right: np.ndarray, cells: np.ndarray) -> float:
    """Accuracy with every cell that occurs counting alike."""
    return float(np.mean([right[cells == c].mean() for c in sorted(set(cells.tolist()))]))


def permutation_p(better: list[float], worse: list[float]) -> float:
    """The share of relabellings whose difference in means is at least the one seen."""
    both = better + worse
    seen = np.mean(better) - np.mean(worse)
    hits, count = 0, 0
    for chosen in combinations(range(len(both)), len(better)):
        rest = [v for i, v in enumerate(both) if i not in chosen]
        hits += np.mean([both[i] for i in chosen]) - np.mean(rest) >= seen - 1e-12
        count += 1
    return hits / count


def saebench(
    train: np.ndarray,
    train_codes: np.ndarray,
    train_labels: np.ndarray,
    test: np.ndarray,
    codes: np.ndarray,
    labels: np.ndarray,
    decoder: np.ndarray,
    count: int,
) -> tuple[float, float]:
    """TPP and sparse probing (AUC) with SAEBench's probes and its choice of atoms, on all rows at once."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score

    def learn(x: np.ndarray, y: np.ndarray) -> LogisticRegression:
        return LogisticRegression(max_iter=1000, class_weight="balanced").fit(x, y)

    every = range(labels.shape[1])
    probes = [learn(train, train_labels[:, i]) for i in every]
    tpp, probing = [], []
    for i in every:
        on = train_labels[:, i]
        apart = train_codes[on].mean(0) - train_codes[~on].mean(0)
        effect = np.maximum(apart, 0) * (decoder @ probes[i].coef_[0])
        taken = np.argsort(-effect)[:count]
        without = test - codes[:, taken] @ decoder[taken]
        drops = [
            balanced_accuracy_score(labels[:, j], probes[j].predict(test))
            - balanced_accuracy_score(labels[:, j], probes[j].predict(without))
            for j in every
        ]
        tpp.append(drops[i] - np.mean([drops[j] for j in every if j != i]))
        few = np.argsort(-np.abs(apart))[:count]
        read = learn(train_codes[:, few], on).decision_function(codes[:, few])
        probing.append(roc_auc_score(labels[:, i], read))
    return float(np.mean(tpp)), float(np.mean(probing))


def taken_over(
    says: np.ndarray, moved: np.ndarray, wanted: np.ndarray, own: np.ndarray, number: int
) -> float:
    """RAVEL's mean of cause and isolation for one property, row by row where the other row differs in it."""
    scores = []
    for before, after, there, here in zip(says, moved, wanted, own, strict=True):
        if there != here:
            others = [after[j] == before[j] for j in range(len(before)) if j != number]
            scores.append((float(after[number] == there) + np.mean(others)) / 2)
    return float(np.mean(scores))
