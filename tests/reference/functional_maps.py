"""Distances, concentration and areas written as their definitions read, one row of plain floats at a time."""

from __future__ import annotations

import math


def area_under_curve(y: list[float], x: list[float] | None = None) -> float:
    x = x if x is not None else [float(i) for i in range(len(y))]
    return sum((x[i + 1] - x[i]) * (y[i] + y[i + 1]) / 2 for i in range(len(y) - 1))


def rms_normalise(e: list[float]) -> list[float]:
    rms = math.sqrt(math.fsum(v * v for v in e) / len(e))
    return [v / rms if rms else 0.0 for v in e]


def cosine_distance(a: list[float], b: list[float]) -> float:
    length_a, length_b = math.sqrt(math.fsum(v * v for v in a)), math.sqrt(math.fsum(v * v for v in b))
    if length_a == 0 or length_b == 0:
        return float(length_a != length_b)
    return 1 - math.fsum(v * w for v, w in zip(a, b, strict=True)) / (length_a * length_b)


def gini(x: list[float]) -> float:
    """Half the mean absolute difference of all pairs, relative to the mean."""
    size = [abs(v) for v in x]
    total = math.fsum(size)
    if total == 0:
        return math.nan
    return math.fsum(abs(a - b) for a in size for b in size) / (2 * len(x) * total)


def entropy(x: list[float]) -> float:
    total = math.fsum(abs(v) for v in x)
    if total == 0:
        return math.nan
    shares = [abs(v) / total for v in x]
    return -math.fsum(p * math.log(p) for p in shares if p > 0)


def round_to_grid(responses: list[float], relative_step: float) -> list[float]:
    step = max(abs(r) for r in responses) * relative_step
    return [round(r / step) * step if step else r for r in responses]


def ssim(
    a: list[list[float]],
    b: list[list[float]],
    weights: list[list[float]],
    data_range: float,
    sample_covariance: bool,
) -> float:
    """Wang et al. (2004) window by window, with (co)variances taken about the window's own weighted mean."""
    size = len(weights)
    flat = [w for line in weights for w in line]
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    correction = size**2 / (size**2 - 1) if sample_covariance else 1.0
    values = []
    for top in range(len(a) - size + 1):
        for left in range(len(a[0]) - size + 1):
            p = [a[top + i][left + j] for i in range(size) for j in range(size)]
            q = [b[top + i][left + j] for i in range(size) for j in range(size)]
            mp = math.fsum(w * v for w, v in zip(flat, p, strict=True))
            mq = math.fsum(w * v for w, v in zip(flat, q, strict=True))
            vp = correction * math.fsum(w * (v - mp) ** 2 for w, v in zip(flat, p, strict=True))
            vq = correction * math.fsum(w * (v - mq) ** 2 for w, v in zip(flat, q, strict=True))
            c = correction * math.fsum(w * (v - mp) * (u - mq) for w, v, u in zip(flat, p, q, strict=True))
            top_value = (2 * mp * mq + c1) * (2 * c + c2)
            values.append(top_value / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    return math.fsum(values) / len(values)
