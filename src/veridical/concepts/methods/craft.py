"""CRAFT: parts of image crops, weighted by how much of the logit's variance each can move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from veridical.concepts.methods.base import ConceptMethod, ConceptVectors
from veridical.concepts.methods.decompositions import _living, nmf
from veridical.concepts.solvers import nnls
from veridical.core.allowed import MANY, Count, NotNegative, PartOf, Within
from veridical.core.key import Key


def sobol_total(pull: Tensor, designs: int | None = None) -> Tensor:
    """Total Sobol indices (N, K) of `y(m) = sum_k m_k pull_k` under masks m ~ U[0, 1]^K.

    `y` is a sum of independent terms, so that the index of each is its share of the variance,
    `pull_k^2 / sum pull^2`. With designs they are estimated by Jansen on Halton's points,
    `S_k = sum_j (y(a_j) - y(a_j with k from b_j))^2 / (2 n var y)`: no masked embedding has to be built for
    that either. Rows without any pull are 0.
    """
    if designs is None:
        moved = pull.square()
        variance = moved.sum(-1, keepdim=True)
    else:
        from scipy.stats import qmc

        # from the second point on: the first is the origin
        halton = qmc.Halton(2 * pull.shape[1], scramble=False).fast_forward(1)
        points = torch.from_numpy(halton.random(designs)).to(pull.device)
        a, b = points.chunk(2, 1)
        moved = (a - b).square().mean(0) / 2 * pull.square()
        variance = (pull @ a.T).var(-1, correction=0, keepdim=True)
    return torch.where(variance > 0, moved / variance.clamp(min=1e-300), 0.0)


@dataclass(frozen=True)
class CRAFT(ConceptMethod):
    """CRAFT (Fel et al. 2023): NMF with a ridge, non-negative codes, Sobol total indices as importances.

    Fit it on `crop_embeddings(split, train images, size)`. On a linear head the index is known exactly,
    `(u_k f . w_k)^2` as a share of its sum; `designs=32` estimates it as the paper does, by Jansen.
    """

    name = "craft"
    fits_on = "crops"
    nonnegative = True
    reading = "nonnegative"
    ridge: NotNegative = 1e-2
    """Weight of the ridge on both factors."""
    designs: Annotated[int, Within(2, MANY)] | None = None
    """Points at which the indices are estimated; None takes their exact values."""
    steps: Count = 1000
    """Steps of the solver at most."""
    crop_share: PartOf = 0.5
    """Side of a crop as a share of the image's shorter side, where no other crops are given."""

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> ConceptVectors:
        parts = _living(nmf(rows, self.n_concepts, self.steps, self.ridge)[1])
        if not len(parts):  # the ridge outweighs embeddings as small as these
            return ConceptVectors(parts)
        codes = nnls((parts @ parts.T)[None], (rows @ parts.T)[None])[0]
        weights = weight if weight.dim() == 2 else weight[None]
        found = [sobol_total(codes * pull, self.designs).mean(0) for pull in weights @ parts.T]
        return ConceptVectors(parts, torch.stack(found) if weight.dim() == 2 else found[0])
