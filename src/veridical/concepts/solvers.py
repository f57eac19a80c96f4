"""Many small least-squares problems at once: non-negative ones (codes), and the lasso (subspace clustering).

What is here pays against one call of scipy or scikit-learn per problem (one CPU core, `benchmarks.surf
--solvers`): `nnls` of 1,000 dictionaries of 5 concepts x 500 rows takes 0.3 s, `scipy.optimize.nnls` 9 s;
`self_expression` of 2,100 rows is 5 to 190 times as fast as scikit-learn's `Lasso` at an equal loss. Problems
that the batched steps leave open, which are rare, go to scipy and scikit-learn.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TOLERANCE = 1e-10
_RANK = 1e-13
"""What is smaller, as a share of the largest, is rounding."""
_EXCHANGES = 10
"""Rounds in which all coefficients change sides at once; problems that are not settled then are rare."""
_BLOCK = 2**20
"""Numbers of the systems that are solved at a time."""

_ROWS = 512
"""Rows that step together: a cache holds them."""
_AT_REST = 0.03
"""Share of their length by which the coefficients of rows that need many others may still move."""
_FEW, _MANY = 32, 64
"""Others that a row is written in where few will do, and where it uses nearly all of those."""
_ROUNDS = 20
"""Times that others may come in."""
_BOUND = 1 / 60
"""What a state holds before it becomes a coefficient: about as large as the small coefficients are."""
_RELAX = 1.8
"""Each step goes so much further than it would; below 2 this converges, and faster."""
_EVERY, _MOST_STEPS = 4, 400
"""Steps between two checks of which rows have come to rest, and steps at most."""


def nnls(gram: Tensor, seen: Tensor) -> Tensor:
    """Solve `min_{p >= 0} p^T A p / 2 - p^T c` exactly for many right-hand sides.

    From the concepts that are positive without the constraint on, all that break an optimality condition
    change sides together (block principal pivoting, Kim and Park 2011).

    Parameters
    ----------
    gram
        `V V^T` (G, K, K), computed once per dictionary.
    seen
        `V h` (G, N, K).

    Returns
    -------
    Tensor
        Codes (G, N, K).

    Examples
    --------
    >>> nnls(torch.eye(2)[None], torch.tensor([[[1.0, -1.0]]])).round(decimals=9).tolist()
    [[[1.0, 0.0]]]
    """
    groups, rows, count = seen.shape
    gram, seen = gram.double(), seen.double()
    free = (torch.linalg.pinv(gram, rtol=_RANK, hermitian=True) @ seen.mT).mT
    # duplicates make the system singular: a ridge at the level of rounding shares the weight between them
    ridge = _RANK * gram.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-280)
    gram = gram + ridge[:, None, None] * torch.eye(count, dtype=gram.dtype, device=gram.device)
    codes, flat = free.reshape(-1, count).clone(), seen.reshape(-1, count)
    bound = (codes < 0).any(-1).nonzero()[:, 0]
    for part in bound.split(max(256, _BLOCK // count**2)):
        codes[part] = _nonnegative(gram[part // rows], flat[part], codes[part] > 0)
    return codes.reshape(groups, rows, count)


def _nonnegative(gram: Tensor, wanted: Tensor, passive: Tensor) -> Tensor:
    """Codes (n, K) of systems (n, K, K), from a guess of the concepts that are not zero."""
    codes = torch.zeros_like(wanted)
    least = _TOLERANCE * wanted.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    left = torch.arange(len(wanted), device=wanted.device)
    for _ in range(_EXCHANGES):
        now = _solve_on(gram, wanted, passive)
        wrong = torch.where(passive, now < 0, wanted - _times(gram, now) > least)
        open_rows = wrong.any(-1)
        codes[left] = now
        if not bool(open_rows.any()):
            return codes
        left, least, gram = left[open_rows], least[open_rows], gram[open_rows]
        wanted, passive = wanted[open_rows], (passive ^ wrong)[open_rows]
    from scipy.optimize import nnls as one_by_one

    sizes, axes = torch.linalg.eigh(gram)
    root = sizes.clamp(min=1e-300).sqrt()
    matrices, targets = root[..., None] * axes.mT, _times(axes.mT, wanted) / root
    found = [one_by_one(a.cpu().numpy(), b.cpu().numpy())[0] for a, b in zip(matrices, targets, strict=True)]
    codes[left] = torch.stack([torch.from_numpy(each) for each in found]).to(codes)
    return codes


def lasso(gram: Tensor, seen: Tensor, penalty: Tensor, start: Tensor, tolerance: float = 1e-4) -> Tensor:
    """`min_c c^T G c / 2 - s^T c + lambda |c|_1` for systems (B, m, m), `s` (B, m) and `lambda` (B, 1).

    Given the signs of the coefficients the optimum is the solution of a linear system: all that break a
    condition of optimality, by a share of the penalty, change sides together.
    """
    systems, wanted, bound = gram.to(torch.float64, copy=True), seen.double(), penalty.double()
    systems.diagonal(dim1=1, dim2=2).mul_(1 + 1e-6)  # rows that are there twice would make it singular
    found = start.to(torch.float64, copy=True)
    left = torch.arange(len(start), device=start.device)
    slope = wanted - _times(systems, found)
    sign = torch.where((found == 0) & (slope.abs() > bound), slope.sign(), found.sign())
    for _ in range(_EXCHANGES):
        now = _solve_on(systems, wanted - bound * sign, sign != 0)
        slope = wanted - _times(systems, now)
        wrong = torch.where(sign != 0, now * sign <= 0, slope.abs() > bound * (1 + tolerance))
        go = wrong.any(-1)
        found[left[~go]] = now[~go]
        sign = torch.where(wrong, torch.where(sign != 0, 0.0, slope.sign()), sign)[go]
        left, systems, wanted, bound = left[go], systems[go], wanted[go], bound[go]
        if not len(left):
            break
    for at, system, target, least in zip(left, systems, wanted, bound[:, 0], strict=True):
        found[at] = _lasso_path(system, target, float(least))
    return found.to(start)


def _lasso_path(gram: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """One system by scikit-learn's least-angle regression."""
    from sklearn.linear_model import lars_path_gram

    path = lars_path_gram(
        seen.cpu().numpy(), gram.cpu().numpy(), n_samples=1, alpha_min=penalty, method="lasso"
    )
    found = torch.from_numpy(path[2][:, -1]).to(seen)
    # what has just left is a rounding error, not a coefficient
    return torch.where(found.abs() > 1e-12 * found.abs().amax(), found, 0.0)


def violation(slope: Tensor, penalty: Tensor, now: Tensor) -> Tensor:
    """How far the conditions of optimality fail at worst (B,), where `slope` is what is left to explain."""
    off = (slope.abs() - penalty).clamp(min=0)
    return torch.where(now != 0, (slope - penalty * now.sign()).abs(), off).amax(-1)


def _solve_on(gram: Tensor, seen: Tensor, active: Tensor) -> Tensor:
    """The unconstrained solution (B, m) with all coefficients but the active ones held at zero."""
    on = active.to(gram.dtype)
    system = gram * (on[:, :, None] * on[:, None, :])
    system.diagonal(dim1=1, dim2=2).add_(1 - on)
    solved = torch.linalg.solve(system, (seen * on)[..., None])[..., 0]
    return torch.where(active, solved, 0.0)


def _times(gram: Tensor, vectors: Tensor) -> Tensor:
    return (gram @ vectors[..., None])[..., 0]


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
    together = _Together(unit, penalty)
    every = torch.arange(len(rows), device=rows.device)
    few, many = (min(width, len(rows) - 1) for width in (_FEW, _MANY))
    state, done = torch.zeros_like(gram), torch.zeros_like(every, dtype=torch.bool)
    for part in every.split(_ROWS):
        state[part], done[part] = together.run(part, state[part], many, _AT_REST)
    whole = together.coefficients(state, every)
    order, wrong = state.abs().fill_diagonal_(-1.0), torch.zeros_like(penalty)
    going, wide = every[~done], done[~done]
    for _ in range(_ROUNDS):
        for width, some in ((few, going[~wide]), (many, going[wide])):
            for part in some.split(max(1, _BLOCK // max(width * width, len(rows)))):
                order[part], wrong[part] = _refit(part, order[part], width, unit, gram, penalty, whole)
        going = going[wrong[going] > tolerance * penalty[going]]
        used = (whole[going] != 0).sum(-1)
        crowded = (used > 0.75 * many) & (many < len(rows) - 1)
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


class _Together:
    """`min ||x_j - c X||^2 / 2 + lambda_j |c|_1` with `c_j = 0`, for rows x_j of X (n, D) of length 1.

    Douglas and Rachford's splitting in the eigenvectors of `X^T X`: a step costs the same however many
    coefficients are not zero. A state (B, n) is coefficients and dual in one: what lies within a bound is the
    dual, as a share of the penalty, and what goes beyond it the coefficient.
    """

    def __init__(self, unit: Tensor, penalty: Tensor) -> None:
        size, axes = torch.linalg.eigh(unit.T @ unit)
        self.turned, self.size, self.weight = unit @ axes, size.clamp(min=0), penalty[:, None] / _BOUND

    def coefficients(self, state: Tensor, rows: Tensor) -> Tensor:
        """What of a state is the coefficients: no row is written in itself."""
        return torch.nn.functional.softshrink(state, _BOUND).scatter_(1, rows[:, None], 0.0)

    def step(self, state: Tensor, rows: Tensor) -> None:
        """One step, in place."""
        now = self.coefficients(state, rows)
        left = torch.addmm(self.turned[rows], torch.sub(state, now, alpha=2), self.turned)
        left /= self.size + self.weight[rows]
        state.addmm_(left, self.turned.T, beta=1 - _RELAX, alpha=_RELAX).add_(now, alpha=_RELAX)

    def run(self, rows: Tensor, state: Tensor, few: int, tolerance: float) -> tuple[Tensor, Tensor]:
        """Step until coefficients move by no more than a share of their length, or are few and not zero.

        Gives the state (B, n) of each row, and whether it has come to rest (B,).
        """
        found, rested = state.clone(), torch.zeros_like(rows, dtype=torch.bool)
        which = torch.arange(len(rows), device=rows.device)
        for _ in range(_MOST_STEPS // _EVERY):
            for _ in range(_EVERY - 1):
                self.step(state, rows)
            before = state.clone()
            self.step(state, rows)
            now = self.coefficients(state, rows)
            rest = (state - before).norm(dim=-1) <= tolerance * now.norm(dim=-1)
            found[which], rested[which] = state, rest
            go = (~rest & ((now != 0).sum(-1) > few)).nonzero()[:, 0]
            if not len(go):
                break
            state, rows, which = state[go], rows[go], which[go]
        return found, rested
