"""Pools whose way back is asked for directly: to have autograd find it costs more than the pool does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.explainers.graph.linear_maps import Pull
from veridical.explainers.graph.products import dense
from veridical.explainers.graph.routes import Routed

_SETTINGS = (("stride", ()), ("padding", 0), ("dilation", 1), ("ceil_mode", False))
_backward: Callable[..., Tensor] = torch.ops.aten.max_pool2d_with_indices_backward.default


def maximum(func: Any, args: Any, kwargs: Any, places: tuple[int, ...]) -> Routed:
    """A maximum over windows of two axes (`F.max_pool2d`): what arrives goes to the winners."""
    a, window, *others = args
    given = dict(zip([name for name, _ in _SETTINGS], others, strict=False)) | kwargs
    stride, padding, dilation, ceil = (given.get(name, default) for name, default in _SETTINGS)
    how = (window, () if stride is None else stride, padding, dilation, ceil)
    value, winners = torch.ops.aten.max_pool2d_with_indices.default(a, *how)
    return Routed(value, lambda R: (_backward(dense(R), a, *how, winners),))


def mean_of_all(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Pull] | None:
    """The mean over the last two axes as a pool, and what comes back through it; None for other pools."""
    if func is not F.adaptive_avg_pool2d or args[1:] not in ((1,), ((1, 1),)) or kwargs:
        return None
    a = args[0].detach()
    places = a.shape[-1] * a.shape[-2]
    return func(a, *args[1:]), lambda g: (g / places).expand_as(a)
