"""Operations whose answer is as large as a tensor says: of them no run is written down to be repeated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from veridical.explainers.graph.operations import tensors

_SIZED = frozenset(
    """
    narrow repeat_interleave expand view reshape repeat tile unflatten split tensor_split pad one_hot arange
    linspace zeros ones full empty new_zeros new_ones new_full new_empty
    """.split()
)


def sized_by_values(name: str, args: Any, kwargs: Any) -> bool:
    """Whether how much an operation answers is read from a tensor, as in `x[:, : lengths.max()]`."""
    if name in ("getitem", "setitem"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        ends = [(part.start, part.stop, part.step) for part in index if isinstance(part, slice)]
        masks = [part for part in index if isinstance(part, Tensor) and part.dtype == torch.bool]
        return next(tensors(ends), None) is not None or (name == "getitem" and bool(masks))
    if name not in _SIZED:
        return False
    if name == "one_hot" and len(args) + len(kwargs) == 1:
        return True
    # the first is what is laid out anew, unless everything is made from nothing
    shaped = name not in ("arange", "linspace") and bool(args) and isinstance(args[0], Tensor)
    return next(tensors((args[1:] if shaped else args, kwargs)), None) is not None
