"""Sparse subspace clustering: rows that lie in the same subspace write each other with few coefficients."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.random.keyed import Key, normal
from veridical.surf.methods.kmeans import kmeans

_BLOCK = 2**22
"""Numbers of the small systems that are solved at a time."""
_DENSE = 2000
"""Rows up to which all eigenvectors are computed at once."""


def self_expression(rows: Tensor, gamma: float = 50.0, active: int = 64, rounds: int = 3) -> Tensor:
    """Coefficients C (n, n), zero on the diagonal, of every row in the other rows, all solved together.

    Row j of C minimises `||x_j - X^T c||^2 / 2 + lambda_j ||c||_1` over rows of length 1, with
    `lambda_j = max_{i != j} |x_i . x_j| / gamma`. Each row works on the `active` rows that correlate most
    with what it has not yet explained: after each round the worst violators of the optimality conditions
    come in, so that the answer is that of the whole problem once none is left.
    """
    unit = torch.nn.functional.normalize(rows, dim=-1)
    gram = unit @ unit.T
    count = len(rows)
    off = gram.clone().fill_diagonal_(0)
    penalty = off.abs().amax(-1, keepdim=True) / gamma
    width = min(active, count - 1)
    chosen = off.abs().fill_diagonal_(-1).topk(width, -1).indices
    values = torch.zeros_like(chosen, dtype=rows.dtype)
    every = torch.arange(count, device=rows.device)[:, None]
    for turn in range(rounds):
        values = torch.cat(
            [
                lasso(
                    gram[chosen[part][:, :, None], chosen[part][:, None, :]],
                    off[part].gather(1, chosen[part]),
                    penalty[part],
                    values[part],
                    tolerance=1e-4,
                )
                for part in every.reshape(-1).split(max(1, _BLOCK // width**2))
            ]
        )
        whole = torch.zeros_like(gram).scatter_(1, chosen, values)
        left = (off - whole @ gram).abs().fill_diagonal_(0)
        if turn == rounds - 1 or not bool((left > penalty * (1 + 1e-3)).any()) or width == count - 1:
            return whole
        # those in use stay, and places of those not in use go to the worst violators
        wanted = left.scatter(1, chosen, torch.where(values != 0, torch.inf, left.gather(1, chosen)))
        chosen = wanted.fill_diagonal_(-1).topk(width, -1).indices
        values = whole[every, chosen]
    return whole


def lasso(
    gram: Tensor, seen: Tensor, penalty: Tensor, start: Tensor, sweeps: int = 100, tolerance: float = 1e-6
) -> Tensor:
    """`min_c c^T G c / 2 - s^T c + lambda |c|_1` for many systems (B, m, m) at once, by coordinate descent.

    One coordinate of all systems moves at a time, to its exact optimum; what is left to explain moves along.
    """
    now = start.clone()
    left = seen - torch.einsum("bij,bj->bi", gram, now)
    size = gram.diagonal(dim1=-2, dim2=-1).clamp(min=1e-12)
    bound = penalty.squeeze(-1)
    for sweep in range(sweeps):
        before = now.clone() if sweep % 10 == 9 else None
        for k in range(now.shape[1]):
            rest = left[:, k] + size[:, k] * now[:, k]
            after = rest.sign() * (rest.abs() - bound).clamp(min=0) / size[:, k]
            left -= (after - now[:, k])[:, None] * gram[:, k]
            now[:, k] = after
        if before is not None and bool((now - before).abs().max() < tolerance):
            break
    return now


def inliers(coefficients: Tensor, share: float) -> Tensor:
    """The rows that are kept when the `share` that needs the most coefficient mass is dropped.

    A row outside every subspace is expensive to write in other rows (Soltanolkotabi and Candes 2012).
    """
    count = len(coefficients)
    keep = max(1, round((1 - share) * count))
    return coefficients.abs().sum(-1).argsort(stable=True)[:keep].sort().values


def spectral(coefficients: Tensor, count: int, key: Key) -> Tensor:
    """The cluster of each row, from the leading eigenvectors of the normalised affinity `|C| + |C|^T`."""
    affinity = coefficients.abs() + coefficients.abs().T
    scale = affinity.sum(-1).clamp(min=1e-12).rsqrt()
    matrix = scale[:, None] * affinity * scale
    if len(matrix) > max(_DENSE, 3 * count):
        start = normal(key / "start", torch.arange(len(matrix), device=matrix.device), 0, count).to(matrix)
        vectors = torch.lobpcg(matrix, X=start, niter=200)[1]
    else:
        vectors = torch.linalg.eigh(matrix)[1][:, -count:]
    leading = torch.nn.functional.normalize(vectors, dim=-1)
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
