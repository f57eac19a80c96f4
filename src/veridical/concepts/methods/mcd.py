"""MCD and HU-MCD: concepts are subspaces, found by clustering embeddings that write each other sparsely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from torch import Tensor

from veridical.concepts.methods.base import ConceptMethod, ConceptVectors
from veridical.concepts.methods.decompositions import kmeans, oriented
from veridical.concepts.solvers import self_expression
from veridical.core.allowed import LARGE, MANY, Count, Share, Within
from veridical.core.key import Key, normal, permutation

_DENSE = 1000
"""Rows from which on leading eigenvectors are searched for alone."""


def inliers(coefficients: Tensor, share: float) -> Tensor:
    """The rows that are kept when the `share` that needs the most coefficient mass is dropped.

    A row outside every subspace is expensive to write in other rows (Soltanolkotabi and Candes 2012).
    """
    count = len(coefficients)
    keep = max(1, round((1 - share) * count))
    return coefficients.abs().sum(-1).argsort(stable=True)[:keep].sort().values


def spectral(coefficients: Tensor, count: int, key: Key) -> Tensor:
    """The cluster of each row, from the leading eigenvectors of the normalised affinity `|C| + |C|^T`."""
    own = csr_array(coefficients.abs().cpu().numpy())
    affinity = own + own.T
    scale = np.maximum(affinity.sum(axis=1), 1e-12) ** -0.5
    matrix = affinity.multiply(scale[:, None]).multiply(scale).tocsr()
    rows = len(scale)
    if rows < _DENSE or connected_components(matrix, directed=False)[0] > 1:
        # where clusters do not touch, eigenvalues are equal, and one start does not lead to all their vectors
        found = eigh(matrix.toarray(), subset_by_index=[rows - count, rows - 1])[1]
    else:
        one = torch.zeros(1, dtype=torch.int64)
        start = normal(key / "start", one, 0, rows, torch.float64)[0].numpy()
        found = eigsh(matrix, count, which="LA", v0=start)[1]
    leading = torch.nn.functional.normalize(torch.from_numpy(found).to(coefficients), dim=-1)
    return kmeans(leading, count, key, starts=8)[1]


def local_basis(rows: Tensor, share: float = 0.05) -> Tensor:
    """An orthonormal basis (d, D) of the subspace in which these rows lie.

    d is the number of principal components (centred) whose variance exceeds a share of the largest, Fukunaga
    and Olsen's rule; the basis holds the d leading singular vectors of the rows as they are, since a subspace
    passes through the origin.
    """
    spread = torch.linalg.svdvals(rows - rows.mean(0)).square()
    size = max(1, int((spread > share * spread[0]).sum()))
    return torch.linalg.svd(rows, full_matrices=False)[2][:size]


@dataclass(frozen=True)
class MCD(ConceptMethod):
    """MCD (Vielhaben et al. 2023): K subspaces per output, each with a basis of its own dimension.

    Up to `most_rows` embeddings are clustered; `outliers` of them are dropped. The embedding is solved in all
    bases and their orthogonal complement, whose part is set to 0: coordinates are `pinv(V) h`. Importances
    are `f_i . v` for every basis vector, and a reader is charged for all of them.
    """

    name = "mcd"
    stochastic = True
    gamma: Annotated[float, Within(1, LARGE, without=(1,))] = 50.0
    """How light the penalty on coefficients is: the largest correlation of a row divided by it."""
    outliers: Annotated[float, Within(0, 1, without=(1,))] = 0.25
    """Share of the rows that is dropped as outliers."""
    most_rows: Annotated[int, Within(2, MANY)] = 10_000
    """Rows that are clustered at most."""
    dimension_share: Share = 0.05
    """Variance, as a share of a cluster's largest, above which a direction belongs to its subspace."""

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> ConceptVectors:
        if len(rows) > self.most_rows:
            one = torch.zeros(1, dtype=torch.int64, device=rows.device)
            rows = rows[permutation(key / "rows", one, 0, len(rows))[0, : self.most_rows]]
        rows = rows[rows.norm(dim=-1) > 0]
        if len(rows) <= self.n_concepts:
            basis = local_basis(rows, self.dimension_share)
            return ConceptVectors(oriented(basis, rows), subspaces=torch.zeros(len(basis)))
        coefficients = self_expression(rows, self.gamma)
        kept = inliers(coefficients, self.outliers)
        rows, coefficients = rows[kept], coefficients[kept][:, kept]
        owner = spectral(coefficients, min(self.n_concepts, len(rows)), key / "clusters")
        bases, subspaces = [], []
        for cluster in owner.unique().tolist():
            members = rows[owner == cluster]
            basis = local_basis(members, self.dimension_share)
            bases.append(oriented(basis, members))
            subspaces += [cluster] * len(basis)
        return ConceptVectors(torch.cat(bases), subspaces=torch.tensor(subspaces, dtype=torch.float64))


@dataclass(frozen=True)
class HUMCD(MCD):
    """HU-MCD (Grobruegge et al. 2025): MCD fitted on `segment_embeddings(split, train images, segmenter)`.

    Only where concepts are found differs: each row is the embedding of one segment under masked convolution.
    Coordinates and importances are MCD's.
    """

    name = "hu-mcd"
    fits_on = "segments"
    segments: Count = 12
    """Superpixels that an image is cut into, about, where no other segments are given."""
