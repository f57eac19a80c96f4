"""Ways to read concepts off an embedding: P(h; V), one number per concept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from veridical.concepts.nnls import nnls


class Projection(Protocol):
    """Codes (N, G, K) of embeddings (N, D): G dictionaries, one per output or one for all."""

    def codes(self, h: Tensor) -> Tensor:
        """How much of each concept an embedding holds."""
        ...


@dataclass(frozen=True, eq=False)
class Linear:
    """`p_k = m_k . (h - mu)`: m is v itself, or a row of the pseudo-inverse of V."""

    rows: Tensor
    centre: Tensor | None = None

    def codes(self, h: Tensor) -> Tensor:
        groups, count, width = self.rows.shape
        found = (h.double() @ self.rows.reshape(-1, width).T).reshape(len(h), groups, count)
        if self.centre is not None:
            found = found - torch.einsum("gkd,gd->gk", self.rows, self.centre)
        return found


@dataclass(frozen=True, eq=False)
class NonNegative:
    """`p = argmin_{p >= 0} ||h - V^T p||`, solved exactly."""

    vectors: Tensor

    def codes(self, h: Tensor) -> Tensor:
        groups, count, width = self.vectors.shape
        gram = self.vectors @ self.vectors.mT
        seen = (h.double() @ self.vectors.reshape(-1, width).T).reshape(len(h), groups, count)
        return nnls(gram, seen.transpose(0, 1)).transpose(0, 1)


def dual(vectors: Tensor) -> Tensor:
    """Rows of the pseudo-inverse: `dual(V) h` are the least-squares coordinates of h in V (G, K, D).

    Equals V itself when its rows are orthonormal, and shares the weight between duplicates otherwise.
    """
    return torch.linalg.pinv(vectors.double(), rtol=1e-10).mT
