"""Independent components: directions along which an output's embeddings vary independently."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.concepts.methods.base import ConceptMethod, Found
from veridical.concepts.methods.pca import spanned
from veridical.core.key import Key, normal

_SETTLED = 1e-6


def unmixing(white: Tensor, key: Key, steps: int) -> Tensor:
    """FastICA on whitened rows (n, K): all components at once, contrast log cosh (Hyvarinen 1999).

    `W <- sym(E[g(W x) x^T] - diag(E[g'(W x)]) W)` with g = tanh, where sym makes rows orthonormal.
    """
    count = white.shape[1]
    ids = torch.arange(count, device=white.device)
    turn = _orthonormal(normal(key, ids, 0, count, torch.float64))
    for _ in range(steps):
        curved = torch.tanh(white @ turn.T)
        slope = (1 - curved.square()).mean(0)
        after = _orthonormal(curved.T @ white / len(white) - slope[:, None] * turn)
        moved = 1 - (after * turn).sum(-1).abs()
        turn = after
        if bool((moved < _SETTLED).all()):
            break
    return turn


def _orthonormal(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix)
    return left @ right


@dataclass(frozen=True)
class ICA(ConceptMethod):
    """Columns of the mixing matrix of FastICA on the K leading components.

    They span the same subspace as the K principal components, so with codes `pinv(V) (h - mu)` and
    importances `f . v` SURF is that of PCA: what differs is how a reader would name the concepts.
    """

    name = "ica"
    stochastic = True

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> Found:
        centre = rows.mean(0)
        values, vectors = spanned(rows - centre, self.n_concepts)
        spread = (values / len(rows) ** 0.5).clamp(min=1e-300)
        white = (rows - centre) @ vectors.T / spread
        turn = unmixing(white, key, steps=200)
        return Found(turn @ (spread[:, None] * vectors), centre=centre)
