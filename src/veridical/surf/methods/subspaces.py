"""Sparse subspace clustering: rows that lie in the same subspace write each other with few coefficients."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.rng import Key, normal
from veridical.surf.methods.kmeans import kmeans

_BLOCK = 2**22
"""Numbers of the small systems that are solved at a time."""
_DENSE = 2000
"""Rows up to which all eigenvectors are computed at once."""


def self_expression(rows: Tensor, gamma: float = 50.0, active: int = 128, rounds: int = 3) -> Tensor:
    """Coefficients C (n, n), zero on the diagonal, of every row in the other rows, all solved together.

    Row j of C minimises `||x_j - X^T c||^2 / 2 + lambda_j ||c||_1` with `lambda_j = max_{i != j} |x_i . x_j| /
    gamma` (rows of length 1). Each row works on the `active` rows that correlate most with what it has not yet
    explained: after each round the worst violators of the optimality conditions come in, so that the answer is
    that of the whole problem once none is left.
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


def lasso(gram: Tensor, seen: Tensor, penalty: Tensor, start: Tensor, steps: int = 300) -> Tensor:
    """`min_c c^T G c / 2 - s^T c + lambda |c|_1` for many systems (B, m, m) at once, by FISTA with restarts."""
    # rows of |G| bound the largest eigenvalue, so no decomposition is needed for the step
    step = 1 / gram.abs().sum(-1).amax(-1, keepdim=True).clamp(min=1e-12)
    now, ahead = start, start
    momentum = torch.ones_like(step)
    for turn in range(steps):
        slope = torch.einsum("bij,bj->bi", gram, ahead) - seen
        moved = ahead - step * slope
        after = moved.sign() * (moved.abs() - step * penalty).clamp(min=0)
        # where the step points back against the momentum, momentum starts over
        back = ((ahead - after) * (after - now)).sum(-1, keepdim=True) > 0
        momentum = torch.where(back, 1.0, momentum)
        faster = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
        ahead = after + (momentum - 1) / faster * (after - now)
        if turn % 25 == 24 and bool((after - now).abs().max() < 1e-7):
            return after
        now, momentum = after, faster
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


def local_dimension(rows: Tensor, share: float = 0.05) -> tuple[int, Tensor]:
    """How many principal components exceed a share of the largest variance, and those directions.

    Fukunaga and Olsen's rule on the rows' second moments, uncentred: a subspace passes through the origin.
    """
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    strong = values.square() > share * values[0].square()
    size = max(1, int(strong.sum()))
    return size, vectors[:size]
