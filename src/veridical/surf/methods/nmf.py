"""Non-negative matrix factorisation: embeddings as sums of parts, and two methods that use it directly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.random.keyed import Key
from veridical.surf.methods.base import ConceptMethod, Found
from veridical.surf.methods.pca import right_singular

_TINY = 1e-12


def nndsvd(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Starts from the positive parts of singular vectors, zeros filled with the mean (NNDSVDa)."""
    values, right = right_singular(rows, count)
    left = rows @ right.T / values.clamp(min=_TINY)
    kept = len(values)
    weights, parts = rows.new_zeros(len(rows), count), rows.new_zeros(count, rows.shape[1])
    for k in range(kept):
        u, v = left[:, k], right[k]
        halves = [(u.clamp(min=0), v.clamp(min=0)), ((-u).clamp(min=0), (-v).clamp(min=0))]
        sizes = [float(a.norm() * b.norm()) for a, b in halves]
        pick = 0 if sizes[0] >= sizes[1] else 1
        a, b = halves[pick]
        scale = (values[k] * sizes[pick]).sqrt()
        weights[:, k] = scale * a / a.norm().clamp(min=_TINY)
        parts[k] = scale * b / b.norm().clamp(min=_TINY)
    mean = rows.mean().clamp(min=_TINY)
    return torch.where(weights > 0, weights, mean), torch.where(parts > 0, parts, mean)


def nmf(rows: Tensor, count: int, steps: int = 200, ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """`rows ~ U W` with `U, W >= 0`, one part at a time (HALS); gives U (n, K) and W (K, D).

    Minimises `||X - U W||^2 / 2 + ridge (D ||U||^2 + n ||W||^2) / 2`, the penalty as scikit-learn weighs it.
    """
    weights, parts = nndsvd(rows, count)
    n, width = rows.shape
    for step in range(steps):
        before = parts.clone() if step % 10 == 9 else None
        weights = _sweep(weights, rows @ parts.T, parts @ parts.T, ridge * width)
        parts = _sweep(parts.T, rows.T @ weights, weights.T @ weights, ridge * n).T
        if before is not None and bool((parts - before).norm() <= 1e-6 * parts.norm()):
            break
    return weights, parts


def _sweep(factor: Tensor, seen: Tensor, gram: Tensor, ridge: float) -> Tensor:
    """Minimise over one column after another, each at its exact non-negative optimum."""
    factor = factor.clone()
    for k in range(factor.shape[1]):
        rest = seen[:, k] - factor @ gram[:, k] + factor[:, k] * gram[k, k]
        factor[:, k] = (rest / (gram[k, k] + ridge + _TINY)).clamp(min=0)
    return factor


@dataclass(frozen=True)
class NMF(ConceptMethod):
    """The baseline: parts of NMF, codes are coordinates in them (`pinv(W) h`), importances `f . w`."""

    name = "nmf"
    nonnegative = True
    steps: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise InputError(f"steps is at least 1, got {self.steps}")

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> Found:
        return Found(_living(nmf(rows, self.n_concepts, self.steps)[1]))


@dataclass(frozen=True)
class ICE(NMF):
    """ICE (Zhang et al. 2021): parts of NMF read by exact non-negative least squares.

    The importance is the directional derivative of the logit along a part; for a linear head `f_i . w_k`.
    """

    name = "ice"
    reading = "nonnegative"


def _living(parts: Tensor) -> Tensor:
    """Parts that died (all zero) are left out: a zero vector explains nothing."""
    alive = parts.abs().amax(-1) > 0
    return parts[alive] if bool(alive.any()) else parts[:1]
