"""Fast-GEF of sparse codes in plain loops: one sample, one world, one position at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import spearmanr

Array = np.ndarray


def sparse_code(
    h: Array, encoder: Array, bias: Array, kind: str, active: int = 0, threshold: Array | None = None
) -> Array:
    """z = sigma(W h + b) of one vector (GEF eq. 22)."""
    before = [float(np.dot(row, h) + b) for row, b in zip(encoder, bias, strict=True)]
    if kind == "jumprelu":
        assert threshold is not None
        return np.array([v if v > t and v > 0 else 0.0 for v, t in zip(before, threshold, strict=True)])
    after = [max(0.0, v) for v in before]
    if kind == "topk":
        kept = sorted(range(len(after)), key=lambda i: -after[i])[:active]
        after = [v if i in kept else 0.0 for i, v in enumerate(after)]
    return np.array(after)


def mean_code(maps: Array, encode: Callable[[Array], Array]) -> Array:
    """The mean over positions of one sample's map (channels, height, width)."""
    channels = maps.shape[0]
    vectors = [maps.reshape(channels, -1)[:, place] for place in range(maps[0].size)]
    return np.mean([encode(vector) for vector in vectors], axis=0)


def cosine(u: Array, v: Array) -> float:
    """1 - u.v / (|u| |v|); 1 if one vector is zero, 0 if both are."""
    a, b = float(np.linalg.norm(u)), float(np.linalg.norm(v))
    if a == 0 or b == 0:
        return 0.0 if a == b else 1.0
    return 1 - float(np.dot(u, v)) / (a * b)


def fast_gef(
    clean_answer: float,
    clean_code: Array,
    answers: Sequence[Sequence[float]],
    codes: Sequence[Sequence[Array]],
) -> float:
    """Mean over draws of the rank correlation over levels of |y - y_hat| and the cosine distance."""
    each = []
    for answer_line, code_line in zip(answers, codes, strict=True):
        moved_model = [abs(clean_answer - answer) for answer in answer_line]
        moved_code = [cosine(clean_code, code) for code in code_line]
        each.append(spearmanr(moved_model, moved_code).statistic)
    return float(np.mean(each))
