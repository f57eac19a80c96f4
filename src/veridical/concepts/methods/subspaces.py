"""Sparse subspace clustering: rows that lie in the same subspace write each other with few coefficients."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from torch import Tensor

from veridical.concepts.methods.kmeans import kmeans
from veridical.concepts.methods.lasso import lasso, violation
from veridical.concepts.methods.lasso_together import Together
from veridical.core.key import Key, normal

_ROWS = 512
"""Rows that step together: a cache holds them."""
_AT_REST = 0.03
"""Share of their length by which the coefficients of rows that need many others may still move."""
_FEW, _MOST = 32, 64
"""Others that a row is written in where few will do, and where it uses nearly all of those."""
_ROUNDS = 20
"""Times that others may come in."""
_BLOCK = 2**20
"""Numbers of the small systems that are solved at a time."""
_DENSE = 1000
"""Rows from which on leading eigenvectors are searched for alone."""


def self_expression(rows: Tensor, gamma: float = 50.0, tolerance: float = 1e-3) -> Tensor:
    """Coefficients C (n, n), zero on the diagonal, of every row in the other rows.

    Row j of C minimises `||x_j - X^T c||^2 / 2 + lambda_j ||c||_1` over rows of length 1, with
    `lambda_j = max_{i != j} |x_i . x_j| / gamma`. A few steps that all rows take together show which others
    matter. Where these are few, the row works on them alone, exactly: after each round the worst violators
    of the optimality conditions come in, until none is left. Rows that need many others step on together.
    """
    unit = torch.nn.functional.normalize(rows, dim=-1).float()
    gram = (unit @ unit.T).fill_diagonal_(0)
    penalty = gram.abs().amax(-1) / gamma
    together = Together(unit, penalty)
    every = torch.arange(len(rows), device=rows.device)
    few, most = (min(width, len(rows) - 1) for width in (_FEW, _MOST))
    state, done = torch.zeros_like(gram), torch.zeros_like(every, dtype=torch.bool)
    for part in every.split(_ROWS):
        state[part], done[part] = together.run(part, state[part], most, _AT_REST)
    whole = together.coefficients(state, every)
    order, wrong = state.abs().fill_diagonal_(-1.0), torch.zeros_like(penalty)
    going, wide = every[~done], done[~done]
    for _ in range(_ROUNDS):
        for width, some in ((few, going[~wide]), (most, going[wide])):
            for part in some.split(max(1, _BLOCK // max(width * width, len(rows)))):
                order[part], wrong[part] = _refit(part, order[part], width, unit, gram, penalty, whole)
        going = going[wrong[going] > tolerance * penalty[going]]
        used = (whole[going] != 0).sum(-1)
        crowded = (used > 0.75 * most) & (most < len(rows) - 1)
        for part in going[crowded].split(_ROWS):
            found, _ = together.run(part, state[part], 0, _AT_REST)
            whole[part] = together.coefficients(found, part)
        going, wide = going[~crowded], used[~crowded] > 0.75 * few
        if not len(going):
            break
    return whole.to(rows.dtype)


def _refit(
    part: Tensor, order: Tensor, width: int, unit: Tensor, gram: Tensor, penalty: Tensor, whole: Tensor
) -> tuple[Tensor, Tensor]:
    """Write rows anew in those that come first: gives the next order (B, n), and how far off they are."""
    chosen = order.topk(width, -1).indices
    among = gram[chosen[:, :, None], chosen[:, None, :]]
    among.diagonal(dim1=1, dim2=2).fill_(1.0)
    now, bound, own = whole[part], penalty[part, None], part[:, None]
    values = lasso(among, gram[part].gather(1, chosen), bound, now.gather(1, chosen))
    now = now.zero_().scatter_(1, chosen, values)
    left = ((unit[part] - now @ unit) @ unit.T).scatter_(1, own, 0.0)
    whole[part] = now
    return left.abs().masked_fill_(now != 0, torch.inf).scatter_(1, own, -1.0), violation(left, bound, now)


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
