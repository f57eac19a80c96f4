"""Linear layers as relevance needs them: what they give, and what is passed back through them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Pull = Callable[[Tensor], Tensor]
"""From something over the outputs to its sum over the inputs, each by its weight."""
Linear = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Pull]]
"""From inputs, weights and bias to the output, apart from any graph, and the way back."""


def pulled(function: Callable[[Tensor], Tensor], a: Tensor) -> tuple[Tensor, Pull]:
    """What a differentiable function gives, in a small graph of its own, and the way back through it."""
    leaf = a.detach().requires_grad_(True)
    with torch.enable_grad():
        z = function(leaf)

    def pull(g: Tensor) -> Tensor:
        return torch.autograd.grad(z, leaf, g, retain_graph=True)[0]

    return z.detach(), pull


def linear_in(function: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Linear:
    """Any function that is linear in its inputs: autograd finds the way back."""

    def run(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Pull]:
        return pulled(lambda leaf: function(leaf, w, b), a)

    return run


def dense(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Pull]:
    """A linear layer."""
    with torch.no_grad():
        z = F.linear(a, w, b)
    return z, lambda g: (g @ w.to(g.dtype)).to(a.dtype)


def convolution(func: Callable[..., Tensor], args: tuple[Any, ...], named: dict[str, Any]) -> Linear:
    """A convolution called with these arguments behind its weights and bias."""
    return linear_in(lambda a, w, b: func(a, w, b, *args, **named))


def product(func: Callable[..., Tensor], args: tuple[Any, ...], at: int, weights: int) -> Linear:
    """A product of matrices, however it is written, that takes inputs and weights at these places."""
    return linear_in(partial(_product, func, args, at, weights))


def _product(
    func: Callable[..., Tensor],
    args: tuple[Any, ...],
    at: int,
    weights: int,
    a: Tensor,
    w: Tensor,
    b: Tensor | None,
) -> Tensor:
    given = list(args)
    given[at], given[weights] = a, w
    z = func(*given)
    return z if b is None else z + b


def summed(name: str, args: tuple[Any, ...], at: int) -> int:
    """How many products are summed to each number of such a product."""
    a = args[at]
    if name == "einsum":
        given, _, left = args[0].replace(" ", "").partition("->")
        sizes = dict(zip(given.split(",")[at - 1], a.shape, strict=False))
        return math.prod(size for letter, size in sizes.items() if letter not in left)
    first = next(i for i, v in enumerate(args) if isinstance(v, Tensor)) == at
    return int(a.shape[-1] if first or a.dim() == 1 else a.shape[-2])
