"""Linear layers as relevance needs them: what they answer, and what comes back through them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.explainers.graph.routes import pulling

Pull = Callable[[Tensor], Tensor]
"""From something over the answers to its sum over the inputs, each by its weight."""
Linear = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Pull]]
"""From inputs, weights and bias to the answer, apart from any graph, and the way back."""


def without_graph(a: Tensor) -> Tensor:
    """The same values, apart from any graph."""
    return a.detach() if a.requires_grad else a


def leaf_of(a: Tensor) -> Tensor:
    """The same values at the start of a graph of their own."""
    return a.detach().requires_grad_(True)


def followed(function: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Linear:
    """Any function that is linear in its inputs: autograd finds the way back."""

    def run(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Pull]:
        leaf = leaf_of(a)
        with torch.enable_grad():
            z = function(leaf, w, b)
        pull = pulling([z], [leaf])
        return z.detach(), lambda g: pull([g])[0]

    return run


@lru_cache(maxsize=1024)
def product(func: Callable[..., Tensor], args: tuple[Any, ...], at: int, weights: int) -> Linear:
    """A product of matrices, however it is written, that takes inputs and weights at these places."""

    def run(a: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        given = list(args)
        given[at], given[weights] = a, w
        z = func(*given)
        return z if b is None else z + b

    return followed(run)


def summed(name: str, args: tuple[Any, ...], at: int) -> int:
    """How many products are summed to each number of such a product."""
    a = args[at]
    if name == "einsum":
        given, _, left = args[0].replace(" ", "").partition("->")
        sizes = dict(zip(given.split(",")[at - 1], a.shape, strict=False))
        return math.prod(size for letter, size in sizes.items() if letter not in left)
    first = next(i for i, v in enumerate(args) if isinstance(v, Tensor)) == at
    return int(a.shape[-1] if first or a.dim() == 1 else a.shape[-2])


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

    axes = int(func.__name__[-2])
    stride, padding, dilation = (
        [value] * axes if isinstance(value, int) else value
        for value in (settings.get(name, default) for name, default in _DEFAULTS)
    )
    groups = settings.get("groups", 1)
    none, whole = [0] * axes, all(step == 1 for step in stride)
    behind = (None, stride, padding, dilation, False, none, groups, [True, False, False])
    transposed: Callable[..., Tensor] = getattr(F, f"conv_transpose{axes}d")

    def beyond(a: Tensor, w: Tensor) -> list[int]:
        """How much of each axis no window ends at."""
        if whole:
            return none
        sizes = zip(a.shape[-axes:], w.shape[-axes:], stride, padding, dilation, strict=True)
        return [(n + 2 * p - d * (k - 1) - 1) % s for n, k, s, p, d in sizes]

    by_name = dict(named)

    def run(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Pull]:
        kept = without_graph(a)
        z = func(kept, w, b, *args, **by_name)

        def pull(g: Tensor) -> Tensor:
            if g.dtype == kept.dtype == w.dtype:  # to ask for the dtype it has costs as much as a kernel
                if groups == 1 and g.dtype != torch.float64:
                    # the same kernel at a third of the host's time; in float64 a slower one
                    return transposed(g, w, None, stride, padding, beyond(kept, w), 1, dilation)
                return _backward(g, kept, w, *behind)[0]
            return _backward(g, kept.to(g.dtype), w.to(g.dtype), *behind)[0].to(kept.dtype)

        return z, pull

    return run


_backward: Callable[..., tuple[Tensor, ...]] = torch.ops.aten.convolution_backward.default
_DEFAULTS = (("stride", 1), ("padding", 0), ("dilation", 1))
