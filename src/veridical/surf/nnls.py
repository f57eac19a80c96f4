"""Non-negative least squares, exact and batched: the code of an embedding in a dictionary of parts."""

from __future__ import annotations

import torch
from torch import Tensor

_TOLERANCE = 1e-10


def nnls(gram: Tensor, seen: Tensor) -> Tensor:
    """Solve `min_{p >= 0} p^T A p / 2 - p^T c` for many right-hand sides (Lawson and Hanson's active set).

    `gram` (G, K, K) is `V V^T`, computed once a dictionary, and `seen` (G, N, K) is `V h`. All rows step
    together: each adds its most promising concept, solves on its passive set, and steps back along the
    segment to the first concept that would turn negative, until every row is optimal.

    >>> nnls(torch.eye(2)[None], torch.tensor([[[1.0, -1.0]]])).round(decimals=9).tolist()
    [[[1.0, 0.0]]]
    """
    seen = seen.double()
    groups, rows, count = seen.shape
    flat = seen.reshape(-1, count)
    which = torch.arange(groups, device=seen.device).repeat_interleave(rows)
    answer = torch.zeros_like(flat)
    scale = flat.abs().amax(-1).clamp(min=1e-300)
    left = torch.arange(len(flat), device=seen.device)
    passive = torch.zeros_like(flat, dtype=torch.bool)
    for _ in range(3 * count + 10):
        slope = flat[left] - torch.einsum("nkj,nj->nk", gram.double()[which[left]], answer[left])
        slope = slope.masked_fill(passive[left], -torch.inf)
        best, at = slope.max(-1)
        open_rows = best > _TOLERANCE * scale[left]
        left, at = left[open_rows], at[open_rows]
        if not len(left):
            break
        passive[left, at] = True
        answer[left], passive[left] = _inner(
            gram.double()[which[left]], flat[left], answer[left], passive[left]
        )
    return answer.reshape(groups, rows, count)


def _inner(gram: Tensor, seen: Tensor, current: Tensor, passive: Tensor) -> tuple[Tensor, Tensor]:
    """Solve on the passive sets; while a concept turns negative, step to the border and drop it."""
    passive = passive.clone()
    for _ in range(passive.shape[-1] + 1):
        wanted = _on_passive(gram, seen, passive)
        bad = passive & (wanted <= 0)
        if not bool(bad.any()):
            return wanted, passive
        share = torch.where(bad, current / (current - wanted).clamp(min=1e-300), torch.inf)
        step = share.amin(-1, keepdim=True).clamp(max=1.0)
        moved = current + step * (wanted - current)
        # the concept that sets the step is dropped by name: rounding could leave it a hair above zero
        dropped = bad & (share <= step)
        passive = passive & ~dropped & ~(passive & (moved <= 0) & bad)
        current = torch.where(passive, moved, 0.0)
    return current.clamp(min=0), passive


def _on_passive(gram: Tensor, seen: Tensor, passive: Tensor) -> Tensor:
    """The unconstrained solution with all other concepts held at zero."""
    both = passive[:, :, None] & passive[:, None, :]
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # duplicates make the system singular: a ridge at the level of rounding shares the weight between them
    ridge = 1e-13 * gram.diagonal(dim1=-2, dim2=-1).amax(-1).clamp(min=1e-300)
    system = torch.where(both, gram, 0.0) + eye * torch.where(passive, ridge[:, None], 1.0)[:, None, :]
    solved = torch.linalg.solve(system, torch.where(passive, seen, 0.0)[..., None]).squeeze(-1)
    return torch.where(passive, solved, 0.0)
