"""CDISCO: singular vectors of an output's embeddings, weighted by gradient times activation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from veridical.concepts.methods.base import ConceptMethod, Found
from veridical.concepts.methods.pca import oriented, right_singular
from veridical.core.key import Key


@dataclass(frozen=True)
class CDISCO(ConceptMethod):
    """CDISCO (Graziani et al. 2023): uncentred SVD; `alpha` is a z-score over all singular vectors.

    `a_v = mean over the output's samples of (grad y_i . v)(h . v)`; for a linear head the gradient is `f_i`.
    The K largest |z| are kept with their sign. Vectors point to where the samples lie; codes are `h . v`.
    """

    name = "cdisco"
    reading = "project"

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> Found:
        values, vectors = right_singular(rows)
        # beyond the rank of the rows a singular vector is arbitrary, and would set the scale of the z-scores
        vectors = oriented(vectors[values > 1e-6 * values[0]], rows)
        weights = weight if weight.dim() == 2 else weight[None]
        strength = (weights @ vectors.T) * (rows.mean(0) @ vectors.T)
        scores = (strength - strength.mean(-1, keepdim=True)) / _spread(strength)
        pick = scores.abs().amax(0).topk(min(self.n_concepts, len(vectors))).indices
        importances = scores[:, pick]
        return Found(vectors[pick], importances if weight.dim() == 2 else importances[0])


def _spread(values: Tensor) -> Tensor:
    """The standard deviation; 1 where there is nothing to scale."""
    spread = values.std(-1, correction=0, keepdim=True)
    return spread + (spread == 0)
