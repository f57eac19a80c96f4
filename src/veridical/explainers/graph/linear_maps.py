"""Linear layers as relevance needs them: what they answer, and what comes back through them."""

from __future__ import annotations

from collections.abc import Callable
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


def convolution(module: Any) -> Linear:
    """A convolution with the stride, padding and groups of a module.

    Its way back is asked for directly: to have autograd find it costs more than many a layer does.
    """
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        return followed(module._conv_forward)
    stride, padding, dilation, groups = module.stride, module.padding, module.dilation, module.groups

    def run(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Pull]:
        with torch.no_grad():
            z = module._conv_forward(a, w, b)
        kept = a.detach()

        def pull(g: Tensor) -> Tensor:
            found: Tensor = torch.ops.aten.convolution_backward.default(
                *(g, kept.to(g.dtype), w.to(g.dtype), None, stride, padding, dilation),
                *(False, [0] * len(stride), groups, [True, False, False]),
            )[0]
            return found.to(kept.dtype)

        return z, pull

    return run
