"""The ranking study's statistics written out slowly."""

import math
from collections.abc import Sequence


def ranks(values: Sequence[float]) -> list[float]:
    """Average ranks from 1."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's correlation of the ranks; NaN for a constant."""
    x, y = ranks(a), ranks(b)
    mx, my = sum(x) / len(x), sum(y) / len(y)
    sxy = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    sxx, syy = sum((p - mx) ** 2 for p in x), sum((q - my) ** 2 for q in y)
    return math.nan if sxx == 0 or syy == 0 else sxy / math.sqrt(sxx * syy)


def trapezoid(y: Sequence[float], x: Sequence[float]) -> float:
    """The area under a curve."""
    return sum((y[i] + y[i + 1]) * (x[i + 1] - x[i]) / 2 for i in range(len(x) - 1))


def micro_rank(correlations: dict[str, list[float]], sign: int) -> dict[str, float]:
    """Mean rank over sizes: ties get the best rank, undefined ranks last."""
    out = dict.fromkeys(correlations, 0.0)
    sizes = len(next(iter(correlations.values())))
    for place in range(sizes):
        scores = {
            name: -math.inf if math.isnan(row[place]) else sign * row[place]
            for name, row in correlations.items()
        }
        for name in correlations:
            out[name] += (1 + sum(other > scores[name] for other in scores.values())) / sizes
    return out
