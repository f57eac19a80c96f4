"""The lasso for many small systems at once: least squares with few coefficients that are not zero."""

from __future__ import annotations

import torch
from torch import Tensor

_CHANGES = 10
"""Rounds in which all coefficients change sides at once; rows that are not settled then are rare."""


def lasso(gram: Tensor, seen: Tensor, penalty: Tensor, start: Tensor, tolerance: float = 1e-4) -> Tensor:
    """`min_c c^T G c / 2 - s^T c + lambda |c|_1` for systems (B, m, m), `s` (B, m) and `lambda` (B, 1).

    Given the signs of the coefficients the optimum is the solution of a linear system: all that break a
    condition of optimality, by a share of the penalty, change sides together, and rows that this does not
    settle go one by one.
    """
    systems, wanted, bound = gram.to(torch.float64, copy=True), seen.double(), penalty.double()
    systems.diagonal(dim1=1, dim2=2).mul_(1 + 1e-6)  # rows that are there twice would make it singular
    found, settled = _exchange(systems, wanted, bound, start.double(), tolerance)
    left = (~settled).nonzero()[:, 0]
    if len(left):
        found[left] = _one_by_one(systems[left], wanted[left], bound[left], tolerance)
    return found.to(start)


def violation(slope: Tensor, penalty: Tensor, now: Tensor) -> Tensor:
    """How far the conditions of optimality fail at worst (B,), where `slope` is what is left to explain."""
    off = (slope.abs() - penalty).clamp(min=0)
    return torch.where(now != 0, (slope - penalty * now.sign()).abs(), off).amax(-1)


def _exchange(
    gram: Tensor, seen: Tensor, penalty: Tensor, start: Tensor, tolerance: float
) -> tuple[Tensor, Tensor]:
    """Solutions (B, m) for signs that are at first those of a start, and where they are optimal (B,)."""
    found, settled = start.clone(), torch.zeros_like(start[:, 0], dtype=torch.bool)
    which = torch.arange(len(start), device=start.device)
    slope = seen - _times(gram, start)
    sign = torch.where((start == 0) & (slope.abs() > penalty), slope.sign(), start.sign())
    for _ in range(_CHANGES):
        now = _with_signs(gram, seen, penalty, sign)
        slope = seen - _times(gram, now)
        wrong = torch.where(sign != 0, now * sign <= 0, slope.abs() > penalty * (1 + tolerance))
        go = wrong.any(-1)
        found[which[~go]], settled[which[~go]] = now[~go], True
        if not bool(go.any()):
            break
        sign = torch.where(wrong, torch.where(sign != 0, 0.0, slope.sign()), sign)[go]
        which, gram, seen, penalty = which[go], gram[go], seen[go], penalty[go]
    return found, settled


def _one_by_one(gram: Tensor, seen: Tensor, penalty: Tensor, tolerance: float) -> Tensor:
    """From nothing, the worst violator comes in once those in use are optimal for their signs."""
    found, now = torch.zeros_like(seen), torch.zeros_like(seen)
    which = torch.arange(len(seen), device=seen.device)
    for _ in range(6 * seen.shape[1]):
        slope, sign = seen - _times(gram, now), now.sign()
        on, least = sign != 0, tolerance * penalty[:, 0]
        ready = torch.where(on, slope - penalty * sign, 0.0).abs().amax(-1) <= least
        worst, at = torch.where(on, -torch.inf, slope.abs() - penalty).max(-1)
        go = (~ready | (worst > least)).nonzero()[:, 0]
        found[which] = now
        if not len(go):
            break
        comes = torch.where(
            ready, slope.gather(1, at[:, None])[:, 0].sign(), sign.gather(1, at[:, None])[:, 0]
        )
        sign = sign.scatter(1, at[:, None], comes[:, None])[go]
        which, gram, seen, penalty = which[go], gram[go], seen[go], penalty[go]
        now = _towards(gram, seen, penalty, sign, now[go])
    return found


def _towards(gram: Tensor, seen: Tensor, penalty: Tensor, sign: Tensor, now: Tensor) -> Tensor:
    """The best point on the way to the optimum for these signs; the loss has a kink where one turns."""
    wanted = _with_signs(gram, seen, penalty, sign)
    step = wanted - now
    slope = (step * (_times(gram, now) - seen + penalty * sign)).sum(-1, keepdim=True)
    bend = (step * _times(gram, step)).sum(-1, keepdim=True).clamp(min=1e-300)
    kinks = torch.where(wanted * sign < 0, now / (now - wanted), 1.0)
    ends, order = kinks.sort(-1)
    jump = torch.where(ends < 1, 2 * penalty * step.abs().gather(1, order), 0.0)
    after = jump.cumsum(-1)
    # the derivative only grows: the best point is before the first kink after which it is positive
    past = slope + bend * ends + after >= 0
    past[:, -1] = True
    first = past.to(torch.uint8).argmax(-1, keepdim=True)
    root = -(slope + (after - jump).gather(1, first)) / bend
    share = torch.minimum(root, ends.gather(1, first)).clamp(min=0)
    return torch.where((kinks == share) & (kinks < 1), 0.0, now + share * step)


def _with_signs(gram: Tensor, seen: Tensor, penalty: Tensor, sign: Tensor) -> Tensor:
    """The optimum if these are the signs of the coefficients."""
    on = sign.abs()
    system = gram * (on[:, :, None] * on[:, None, :])
    system.diagonal(dim1=1, dim2=2).add_(1 - on)
    return torch.linalg.solve(system, ((seen - penalty * sign) * on)[..., None])[..., 0]


def _times(gram: Tensor, vectors: Tensor) -> Tensor:
    return (gram @ vectors[..., None])[..., 0]
