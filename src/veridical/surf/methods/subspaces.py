"""Sparse subspace clustering: rows that lie in the same subspace write each other with few coefficients."""

from __future__ import annotations

import torch
from scipy.linalg import eigh
from torch import Tensor

from veridical.random.keyed import Key
from veridical.surf.methods.kmeans import kmeans
from veridical.surf.methods.lasso import SWEEPS, lasso

_BLOCK = 2**20
"""Numbers of the small systems that are solved at a time."""
_FEW = 32
"""Others that a row is written in at first."""


def self_expression(rows: Tensor, gamma: float = 50.0, active: int = 64, rounds: int = 4) -> Tensor:
    """Coefficients C (n, n), zero on the diagonal, of every row in the other rows, all solved together.

    Row j of C minimises `||x_j - X^T c||^2 / 2 + lambda_j ||c||_1` over rows of length 1, with
    `lambda_j = max_{i != j} |x_i . x_j| / gamma`. Each row works on the few others that correlate most with
    what it has not yet explained: after each round the worst violators of the optimality conditions come in,
    so that the answer is that of the whole problem once none is left. Rows that use nearly all of theirs get
    up to `active`. Single precision is enough: what is made of the coefficients is a clustering.
    """
    unit = torch.nn.functional.normalize(rows, dim=-1).float()
    gram = (unit @ unit.T).fill_diagonal_(0)
    penalty = gram.abs().amax(-1) / gamma
    most = min(active, len(rows) - 1)
    few = min(_FEW, most)
    whole, left = torch.zeros_like(gram), gram.abs()
    going = torch.arange(len(rows), device=rows.device)
    wide = torch.zeros_like(going, dtype=torch.bool)
    for turn in range(rounds):
        for width, some in ((few, going[~wide]), (most, going[wide])):
            # others will come in: only the last round need be exact
            sweeps = 100 if turn == rounds - 1 or width == len(rows) - 1 else SWEEPS
            for part in some.split(max(1, _BLOCK // max(width * width, len(rows)))):
                left[part] = _refit(part, width, sweeps, unit, gram, penalty, whole, left[part])
        more = (left[going] > penalty[going, None] * (1 + 1e-3)).any(-1)
        going = going[more]
        if not len(going) or few == len(rows) - 1:
            break
        wide = (whole[going] != 0).sum(-1) > 0.75 * few
    return whole.to(rows.dtype)


def _refit(
    part: Tensor,
    width: int,
    sweeps: int,
    unit: Tensor,
    gram: Tensor,
    penalty: Tensor,
    whole: Tensor,
    left: Tensor,
) -> Tensor:
    """Write some rows anew, in those in use and the worst violators; gives what they still leave (B, n)."""
    used = whole[part]
    wanted = left.masked_fill_(used != 0, torch.inf).scatter_(1, part[:, None], -1.0)
    chosen = wanted.topk(width, -1).indices
    # products of rows are looked up, systems last: to make them again from the rows takes most of the time
    places = chosen.T
    among = gram.take(places[:, None] * len(gram) + places)
    among.diagonal(dim1=0, dim2=1).fill_(1.0)
    seen = gram[part].gather(1, chosen).T
    values = lasso(among, seen, penalty[part], used.gather(1, chosen).T, sweeps, 1e-4).T
    whole[part] = used.zero_().scatter_(1, chosen, values)
    rest = unit[part] - used @ unit
    return (rest @ unit.T).abs_().scatter_(1, part[:, None], 0.0)


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
    found = eigh(matrix.float().cpu().numpy(), subset_by_index=[last - count + 1, last])[1]
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
