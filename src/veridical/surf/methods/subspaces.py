"""Sparse subspace clustering: rows that lie in the same subspace write each other with few coefficients."""

from __future__ import annotations

import torch
from scipy.linalg import eigh
from torch import Tensor

from veridical.random.keyed import Key
from veridical.surf.methods.kmeans import kmeans

_BLOCK = 2**22
"""Numbers of the small systems that are solved at a time."""


def self_expression(rows: Tensor, gamma: float = 50.0, active: int = 32, rounds: int = 4) -> Tensor:
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
        # what each row has left to explain, seen from every other: two products through the dimensions
        left = ((unit - whole @ unit) @ unit.T).abs().fill_diagonal_(0)
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
    found = start.clone()
    rows = torch.arange(len(found), device=found.device)
    size, bound = gram.diagonal(dim1=-2, dim2=-1).clamp(min=1e-12), penalty.squeeze(-1)
    left = seen - torch.einsum("bij,bj->bi", gram, found)
    for _ in range(-(-sweeps // 10)):
        now = found[rows]
        for _ in range(min(10, sweeps)):
            before = now.clone()
            for k in range(now.shape[1]):
                rest = torch.addcmul(left[:, k], size[:, k], now[:, k])
                after = (rest - rest.clamp(-bound, bound)) / size[:, k]
                left.addcmul_((after - now[:, k])[:, None], gram[:, k], value=-1)
                now[:, k] = after
        found[rows] = now
        # few systems need many sweeps: those that stay where they are leave the others to themselves
        moving = (now - before).abs().amax(-1) >= tolerance
        if not bool(moving.any()):
            break
        rows, gram, left, size, bound = rows[moving], gram[moving], left[moving], size[moving], bound[moving]
    return found


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
    # only the leading ones, and exactly: where clusters do not touch, eigenvalues are equal
    last = len(matrix) - 1
    found = eigh(matrix.double().cpu().numpy(), subset_by_index=[last - count + 1, last])[1]
    leading = torch.nn.functional.normalize(torch.from_numpy(found).to(matrix), dim=-1)
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
