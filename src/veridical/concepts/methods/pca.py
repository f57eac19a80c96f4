"""Principal components: the directions in which an output's embeddings differ most."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.concepts.methods.base import ConceptMethod, Found
from veridical.core.key import Key


def right_singular(rows: Tensor, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Singular values and right singular vectors (r, D) of rows (n, D), largest first.

    Through the Gram matrix of the columns where rows are many: left singular vectors are never needed.
    """
    if len(rows) < rows.shape[1]:
        _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    else:
        squares, basis = torch.linalg.eigh(rows.T @ rows)
        values, vectors = squares.clamp(min=0).sqrt().flip(0), basis.T.flip(0)
    return values[:count], vectors[:count]


def spanned(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The leading singular values and vectors, but those beyond the rank of the rows: they are arbitrary.

    One is always kept.
    """
    values, vectors = right_singular(rows, count)
    rank = max(1, int((values > 1e-6 * values[0]).sum()))
    return values[:rank], vectors[:rank]


def oriented(vectors: Tensor, rows: Tensor) -> Tensor:
    """Vectors turned so that the mean of `h . v` is not negative."""
    return torch.where((rows.mean(0) @ vectors.T < 0)[:, None], -vectors, vectors)


@dataclass(frozen=True)
class PCA(ConceptMethod):
    """Top K eigenvectors of the covariance; codes `v . (h - mu)`, importances `f . v`; `f . mu` joins b."""

    name = "pca"

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> Found:
        centre = rows.mean(0)
        _, vectors = spanned(rows - centre, self.n_concepts)
        return Found(oriented(vectors, rows), centre=centre)
