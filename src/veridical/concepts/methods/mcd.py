"""MCD: concepts are subspaces, found by clustering embeddings that write each other sparsely."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.concepts.embeddings import Embeddings
from veridical.concepts.head import Head
from veridical.concepts.methods.base import ConceptMethod, Found
from veridical.concepts.methods.pca import oriented
from veridical.concepts.methods.subspaces import inliers, local_basis, self_expression, spectral
from veridical.core.allowed import LARGE, MANY, Share, Within
from veridical.core.key import Key, permutation


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

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> Found:
        if len(rows) > self.most_rows:
            one = torch.zeros(1, dtype=torch.int64, device=rows.device)
            rows = rows[permutation(key / "rows", one, 0, len(rows))[0, : self.most_rows]]
        rows = rows[rows.norm(dim=-1) > 0]
        if len(rows) <= self.n_concepts:
            basis = local_basis(rows, self.dimension_share)
            return Found(oriented(basis, rows), subspaces=torch.zeros(len(basis)))
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
        return Found(torch.cat(bases), subspaces=torch.tensor(subspaces, dtype=torch.float64))

    def fit(self, embeddings: Embeddings, head: Head, seed: int | Key = 0) -> Concepts:
        """Find the subspaces of every output; notes where they span everything: SURF is then 0 trivially."""
        found = super().fit(embeddings, head, seed)
        # units that never fire leave directions that no embedding has, and that no basis needs
        seen = int(torch.linalg.matrix_rank(embeddings.vectors.double(), rtol=1e-6))
        ranks = torch.linalg.matrix_rank(found.vectors, rtol=1e-6)
        full = (ranks >= seen).nonzero().reshape(-1).tolist()
        if not full:
            return found
        which = "all outputs" if len(full) == len(ranks) else f"outputs {full}"
        note = f"the bases of {which} span all {seen} dimensions of the embeddings: SURF is 0 there trivially"
        return replace(found, notes=(*found.notes, note))
