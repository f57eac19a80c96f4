"""QGE rewritten slowly from the paper: plain loops over features, rankings and inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

Respond = Callable[[np.ndarray], float]


def inverse(values: Sequence[float]) -> np.ndarray:
    """Eq. 4 on a map without ties: o = argsort(e); e_inv[o[i]] = e[o[D - 1 - i]]."""
    e = np.asarray(values, dtype=float)
    order = np.argsort(e, kind="stable")
    out = np.empty_like(e)
    for i in range(len(e)):
        out[order[i]] = e[order[len(e) - 1 - i]]
    return out


def kept(respond: Respond, x: np.ndarray, ascending: Sequence[int], fill: float = 0.0) -> float:
    """Eq. 6: 1/D sum over m = 0..D of the response when the m most relevant features are kept."""
    total = 0.0
    for m in range(len(x) + 1):
        masked = np.full_like(x, fill)
        for feature in list(ascending)[len(x) - m :]:
            masked[feature] = x[feature]
        total += respond(masked)
    return total / len(x)


def flipped(respond: Respond, x: np.ndarray, removal: Sequence[int], fill: float = 0.0) -> float:
    """The trapezoid area under the response as features go in this order."""
    masked, curve = x.copy(), [respond(x)]
    for feature in removal:
        masked[feature] = fill
        curve.append(respond(masked.copy()))
    return sum((a + b) / 2 for a, b in itertools.pairwise(curve)) / len(x)


def all_kept(respond: Respond, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """q and QGE of every ranking, one after another."""
    q, gap = [], []
    for ascending in itertools.permutations(range(len(x))):
        own = kept(respond, x, ascending)
        q.append(own)
        gap.append(own - kept(respond, x, ascending[::-1]))
    return np.array(q), np.array(gap)


def percentile(all_scores: np.ndarray, score: float, near: float = 1e-9) -> float:
    """The share of scores below, ties counted half."""
    below = sum(1.0 for s in all_scores if s < score - near)
    tied = sum(1.0 for s in all_scores if abs(s - score) <= near)
    return (below + tied / 2) / len(all_scores)


def mean_place(answers: np.ndarray, values: np.ndarray, metric: str) -> float:
    """The mean percentile of all rankings that agree with a map, among all rankings.

    `answers` (2^D,) are the responses once the features that the bits of a number name are gone.
    """
    count = len(values)
    orders = np.array(list(itertools.permutations(range(count))))  # most relevant first

    def quality(orders: np.ndarray) -> np.ndarray:
        gone = np.cumsum(1 << orders, axis=1)
        gone = np.concatenate([np.zeros((len(gone), 1), dtype=int), gone], axis=1)
        left = answers[2**count - 1 - gone]
        y = answers[gone] if metric == "pixel_flipping" else left
        area = (y[:, 1:] + y[:, :-1]).sum(1) / 2 / count
        return {"pixel_flipping": -area, "insertion": area, "kept_features": left.sum(1) / count}[metric]

    gap, metric = metric.startswith("qge:"), metric.removeprefix("qge:")
    scores = quality(orders) - (quality(orders[:, ::-1]) if gap else 0)
    ranked, along = np.sort(scores), values[orders]
    own = scores[(along[:, 1:] <= along[:, :-1]).all(1)]
    below, up_to = (
        np.searchsorted(ranked, own + near, side) for near, side in ((-1e-9, "left"), (1e-9, "right"))
    )
    return float((below + up_to).mean() / 2 / len(orders))
