"""The lasso for many small systems at once: least squares with few coefficients that are not zero."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.surf.nnls import solve_on

SWEEPS = 10
"""Sweeps of coordinate descent between two tries to solve for the signs they found."""
_CHANGES = 4
"""Times that signs are changed in a try."""


def lasso(
    gram: Tensor, seen: Tensor, penalty: Tensor, start: Tensor, sweeps: int = 100, tolerance: float = 1e-6
) -> Tensor:
    """`min_c c^T G c / 2 - s^T c + lambda |c|_1` for many systems (m, m, B) at once.

    A few sweeps of coordinate descent tell which coefficients are not zero, and their signs; with those the
    solution is that of a linear system, which is taken where it is optimal. The others are swept on. Systems
    run fastest, so that every step is long: `seen` and `start` are (m, B), `penalty` (B,).
    """
    found, which = start.clone(), torch.arange(start.shape[1], device=start.device)
    for _ in range(-(-sweeps // SWEEPS)):
        now, moved = descend(gram, seen, penalty, found[:, which], min(SWEEPS, sweeps))
        exact, settled = with_signs(gram, seen, penalty, now.sign())
        found[:, which] = torch.where(settled, exact, now)
        go = (~settled & (moved >= tolerance)).nonzero()[:, 0]
        if not len(go):
            break
        which, gram, seen, penalty = which[go], gram.index_select(2, go), seen[:, go], penalty[go]
    return found


def descend(gram: Tensor, seen: Tensor, penalty: Tensor, start: Tensor, sweeps: int) -> tuple[Tensor, Tensor]:
    """Sweeps over all coordinates, each moved to its exact optimum; and how far the last sweep moved any."""
    now = start.clone()
    size = gram.diagonal(dim1=0, dim2=1).T.clamp(min=1e-12).contiguous()
    left = seen - (gram * now).sum(1)
    before = now
    for _ in range(sweeps):
        before = now.clone()
        for k in range(len(now)):
            rest = torch.addcmul(left[k], size[k], now[k])
            after = (rest - rest.clamp(-penalty, penalty)) / size[k]
            left.addcmul_(gram[k], after - now[k], value=-1)
            now[k] = after
    return now, (now - before).abs().amax(0)


def with_signs(gram: Tensor, seen: Tensor, penalty: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """The solutions if coefficients have these signs (m, B), and where that is optimal (B,).

    Coefficients that break a condition change sides, all at once, a few times.
    """
    systems, wanted = gram.double(), seen.double()
    systems.diagonal(dim1=0, dim2=1).mul_(1 + 1e-6)
    found, settled = torch.zeros_like(wanted), torch.zeros_like(wanted[0], dtype=torch.bool)
    left, sign, bound = torch.arange(wanted.shape[1], device=wanted.device), sign.double(), penalty.double()
    for _ in range(_CHANGES):
        on = sign != 0
        now = solve_on(systems, wanted - bound * sign, on)
        slope = wanted - (systems * now).sum(1)
        wrong = torch.where(on, ~(now * sign > 0), slope.abs() > bound * (1 + 1e-6))
        found[:, left], settled[left] = now, ~wrong.any(0)
        go = wrong.any(0).nonzero()[:, 0]
        if not len(go):
            break
        sign = torch.where(wrong, torch.where(on, 0.0, slope.sign()), sign)[:, go]
        left, systems, wanted, bound = left[go], systems.index_select(2, go), wanted[:, go], bound[go]
    return found.to(seen), settled
