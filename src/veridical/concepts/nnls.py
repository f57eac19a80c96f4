"""Non-negative least squares, exact and batched: the code of an embedding in a dictionary of parts."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.functional.devices import at_a_time

_TOLERANCE = 1e-10
_RANK = 1e-13
"""What is smaller, as a share of the largest, is rounding."""
_EXCHANGES = 8
"""Rounds in which all concepts change sides at once; rows that are not settled then are rare."""
_SMALL = 32
"""Concepts up to which systems are eliminated side by side; LAPACK takes larger ones one after another."""
_CACHED = 2**17
"""Numbers of the systems that a CPU works on at a time: 1 MiB."""


def nnls(gram: Tensor, seen: Tensor) -> Tensor:
    """Solve `min_{p >= 0} p^T A p / 2 - p^T c` exactly for many right-hand sides.

    `gram` (G, K, K) is `V V^T`, computed once per dictionary, and `seen` (G, N, K) is `V h`. From the
    concepts that are positive without the constraint on, all that break an optimality condition change sides
    together (block principal pivoting, Kim and Park 2011); rows that this does not settle go one by one.

    >>> nnls(torch.eye(2)[None], torch.tensor([[[1.0, -1.0]]])).round(decimals=9).tolist()
    [[[1.0, 0.0]]]
    """
    groups, rows, count = seen.shape
    gram, seen = gram.double(), seen.double()
    free = torch.linalg.pinv(gram, rtol=_RANK, hermitian=True) @ seen.mT
    # duplicates make the system singular: a ridge at the level of rounding shares the weight between them
    ridge = _RANK * gram.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-280)
    gram = gram + ridge[:, None, None] * torch.eye(count, dtype=gram.dtype, device=gram.device)
    # rows run fastest, so that every step is long, and come in blocks that a cache holds
    systems, flat = gram.permute(1, 2, 0), seen.permute(2, 0, 1).reshape(count, -1)
    answer = free.permute(1, 0, 2).reshape(count, -1)
    bound = (answer < 0).any(0).nonzero()[:, 0]
    block = at_a_time(seen, max(256, _CACHED // count**2), max(1, len(bound)))
    for part in bound.split(block):
        answer[:, part] = _exchange(systems[:, :, part // rows], flat[:, part], answer[:, part] > 0)
    return answer.reshape(count, groups, rows).permute(1, 2, 0)


def _exchange(own: Tensor, wanted: Tensor, passive: Tensor) -> Tensor:
    """Codes (K, n) of systems (K, K, n), from a guess of the concepts that are not zero."""
    answer = torch.zeros_like(wanted)
    least = _TOLERANCE * wanted.abs().amax(0).clamp(min=1e-300)
    left = torch.arange(wanted.shape[1], device=wanted.device)
    for _ in range(_EXCHANGES):
        now = solve_on(own, wanted, passive)
        slope = wanted - (own * now).sum(1)
        wrong = torch.where(passive, now < 0, slope > least)
        open_rows = wrong.any(0)
        answer[:, left] = now
        if not bool(open_rows.any()):
            return answer
        left, least = left[open_rows], least[open_rows]
        own, wanted = own[..., open_rows], wanted[:, open_rows]
        passive = (passive ^ wrong)[:, open_rows]
    answer[:, left] = _one_by_one(own, wanted, least)
    return answer


def _one_by_one(own: Tensor, wanted: Tensor, least: Tensor) -> Tensor:
    """Lawson and Hanson's active set, which always ends: all rows step together.

    Each adds its most promising concept, solves on its passive set, and steps back along the segment to the
    first concept that would turn negative, until every row is optimal.
    """
    answer = torch.zeros_like(wanted)
    left = torch.arange(wanted.shape[1], device=wanted.device)
    now, passive = answer.clone(), torch.zeros_like(wanted, dtype=torch.bool)
    for _ in range(3 * len(wanted) + 10):
        slope = (wanted - (own * now).sum(1)).masked_fill_(passive, -torch.inf)
        best, at = slope.max(0)
        still = best > least
        if not bool(still.all()):  # rows that are optimal leave
            answer[:, left] = now
            left, at, least = left[still], at[still], least[still]
            own, wanted, now, passive = own[..., still], wanted[:, still], now[:, still], passive[:, still]
        if not len(left):
            break
        passive[at, torch.arange(len(left), device=at.device)] = True
        now, passive = _inner(own, wanted, now, passive)
    answer[:, left] = now
    return answer


def _inner(gram: Tensor, seen: Tensor, current: Tensor, passive: Tensor) -> tuple[Tensor, Tensor]:
    """Solve on the passive sets; while a concept turns negative, step to the border and drop it."""
    for _ in range(len(passive) + 1):
        wanted = solve_on(gram, seen, passive)
        bad = passive & (wanted <= 0)
        if not bool(bad.any()):
            return wanted, passive
        share = (current / (current - wanted).clamp(min=1e-300)).masked_fill_(~bad, torch.inf)
        step = share.amin(0).clamp(max=1.0)
        moved = current + step * (wanted - current)
        # the concept that sets the step is dropped by name: rounding could leave it a hair above zero
        passive = passive & ~(bad & ((share <= step) | (moved <= 0)))
        current = moved * passive
    return current.clamp(min=0), passive


def solve_on(gram: Tensor, seen: Tensor, passive: Tensor) -> Tensor:
    """The unconstrained solution (K, n) with all other concepts held at zero."""
    keep = passive.to(gram.dtype)
    system = gram * (keep[:, None] * keep)
    system.diagonal(dim1=0, dim2=1).T.add_(1 - keep)
    right = seen * keep
    count = len(right)
    if count > _SMALL:
        solved = torch.linalg.solve(system.permute(2, 0, 1), right.T[..., None]).squeeze(-1).T
        return solved * keep
    for k in range(count - 1):  # elimination; a positive definite system needs no exchange of rows
        factor = system[k + 1 :, k] / system[k, k]
        system[k + 1 :, k + 1 :].addcmul_(factor[:, None], system[k, k + 1 :], value=-1)
        right[k + 1 :].addcmul_(factor, right[k], value=-1)
    for k in reversed(range(count)):
        right[k] -= (system[k, k + 1 :] * right[k + 1 :]).sum(0)
        right[k] /= system[k, k]
    return right.mul_(keep)
