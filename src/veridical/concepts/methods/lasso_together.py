"""The lasso of many rows in one dictionary: each step is two matrix products for all of them."""

from __future__ import annotations

import torch
from torch import Tensor

BOUND = 1 / 60
"""What a state holds before it becomes a coefficient: about as large as the small coefficients are."""
_RELAX = 1.8
"""Each step goes so much further than it would; below 2 this converges, and faster."""
_EVERY = 4
"""Steps between two looks at which rows have come to rest."""
_MOST = 400
"""Steps at most."""


class Together:
    """`min ||x_j - c X||^2 / 2 + lambda_j |c|_1` with `c_j = 0`, for rows x_j of X (n, D) of length 1.

    Douglas and Rachford's splitting in the eigenvectors of `X^T X`: a step costs the same however many
    coefficients are not zero. A state (B, n) is coefficients and dual in one: what lies within a bound is the
    dual, as a share of the penalty, and what goes beyond it the coefficient.
    """

    def __init__(self, unit: Tensor, penalty: Tensor) -> None:
        size, axes = torch.linalg.eigh(unit.T @ unit)
        self.turned, self.size, self.weight = unit @ axes, size.clamp(min=0), penalty[:, None] / BOUND

    def coefficients(self, state: Tensor, rows: Tensor) -> Tensor:
        """What of a state is the coefficients: no row is written in itself."""
        return torch.nn.functional.softshrink(state, BOUND).scatter_(1, rows[:, None], 0.0)

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
        for _ in range(_MOST // _EVERY):
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
