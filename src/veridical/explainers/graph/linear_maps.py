"""Linear layers as relevance needs them: what they answer, and what comes back through them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Pull = Callable[[Tensor], Tensor]
"""From something over the answers to its sum over the inputs, each by its weight; to be asked once."""
Linear = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Pull]]
"""From inputs, weights and bias to the answer, apart from any graph, and the way back."""


def leaf_of(a: Tensor) -> Tensor:
    """The same values at the start of a graph of their own."""
    return a.detach().requires_grad_(True)


def followed(function: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Linear:
    """Any function that is linear in its inputs: autograd finds the way back."""

    def run(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Pull]:
        leaf = leaf_of(a)
        with torch.enable_grad():
            z = function(leaf, w, b)
        return z.detach(), lambda g: torch.autograd.grad(z, leaf, g)[0]

    return run


def dense(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Pull]:
    """A linear layer."""
    with torch.no_grad():
        z = F.linear(a, w, b)
    return z, lambda g: (g @ w.to(g.dtype)).to(a.dtype)


@lru_cache(maxsize=1024)
def convolution(
    func: Callable[..., Tensor], args: tuple[Any, ...], named: tuple[tuple[str, Any], ...]
) -> Linear:
    """A convolution called with these arguments behind its weights and bias.

    Its way back is asked for directly: to have autograd find it costs more than many a layer does.
    """
    settings = dict(zip(("stride", "padding", "dilation", "groups"), args, strict=False)) | dict(named)
    plain = isinstance(settings.get("padding", 0), int | tuple) and "transpose" not in func.__name__

    def as_called(a: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return func(a, w, b, *args, **dict(named))

    if not plain:
        return followed(as_called)

    def run(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Pull]:
        with torch.no_grad():
            z = as_called(a, w, b)
        kept, axes = a.detach(), w.dim() - 2
        stride, padding, dilation = (
            [value] * axes if isinstance(value, int) else value
            for value in (settings.get(name, default) for name, default in _DEFAULTS)
        )

        def pull(g: Tensor) -> Tensor:
            alike = g.dtype == kept.dtype == w.dtype  # to ask for the dtype it has costs as much as a kernel
            found: Tensor = torch.ops.aten.convolution_backward.default(
                *(g, *((kept, w) if alike else (kept.to(g.dtype), w.to(g.dtype)))),
                *(None, stride, padding, dilation),
                *(False, [0] * axes, settings.get("groups", 1), [True, False, False]),
            )[0]
            return found if alike else found.to(kept.dtype)

        return z, pull

    return run


_DEFAULTS = (("stride", 1), ("padding", 0), ("dilation", 1))
