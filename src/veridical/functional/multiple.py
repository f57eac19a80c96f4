"""P-values that stay honest when many are looked at."""

from __future__ import annotations

import torch
from torch import Tensor

from ._rows import align, nan_where


def holm(p: Tensor, where: Tensor | None = None) -> Tensor:
    """Adjust p-values so that the chance of any false discovery in a row stays below the level (Holm 1979).

    With p ascending, `adjusted_(i) = min(1, max_{j <= i} (m - j + 1) p_(j))`. NaN and masked entries come
    back as NaN and do not count towards m.

    >>> holm(torch.tensor([0.25, 0.0625, 0.125], dtype=torch.float64)).tolist()
    [0.25, 0.1875, 0.25]
    """
    p, valid = align(where, p=p)
    ascending, order = torch.sort(nan_where(~valid, p), dim=-1, stable=True)
    tests = (~ascending.isnan()).sum(-1, keepdim=True)
    remaining = tests - torch.arange(p.shape[-1], device=p.device)
    # NaN sorts last; standing in as -inf it cannot lift the running maximum of anything.
    stepped = torch.where(ascending.isnan(), -torch.inf, remaining * ascending).cummax(-1).values
    adjusted = torch.empty_like(p).scatter_(-1, order, stepped.clamp(max=1.0))
    return nan_where(~valid | p.isnan(), adjusted)
