"""Row-wise maths over many maps, a block of samples at a time: memory stays bounded, whatever the number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# float64 copies of a block of this many numbers take some tens of megabytes
_BLOCK = 2**22


def in_blocks(
    judge: Callable[..., Tensor], values: Tensor, *others: Tensor | None, width: int | None = None
) -> Tensor:
    """`judge(values, *others)` on blocks of rows, joined; `others` have the same rows, or are None.

    `judge` must treat every row alone, so that the cut changes nothing. `width` is how many numbers it makes
    of a row, if not about as many as the row has.
    """
    few = max(1, _BLOCK // max(1, width or values.shape[-1]))
    if len(values) <= few:
        return judge(values, *others)
    parts = []
    for at in range(0, len(values), few):
        rows = slice(at, at + few)
        parts.append(judge(values[rows], *(None if o is None else o[rows] for o in others)))
    return torch.cat(parts)
