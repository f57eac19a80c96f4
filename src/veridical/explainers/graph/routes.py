"""A value whose backward pass carries what a rule says instead of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Route(torch.autograd.Function):
    """A value whose backward pass carries relevance by a rule instead of a gradient by the chain rule."""

    @staticmethod
    def forward(
        ctx: Any, given: tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]], *inputs: Tensor
    ) -> Tensor:
        value, ctx.back = given
        # another tensor of the same numbers: what `back` holds must not hold its own graph
        return value.detach()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.back(relevance))


def route(value: Tensor, back: Callable[[Tensor], tuple[Tensor, ...]], *inputs: Tensor) -> Tensor:
    """Let relevance that arrives at `value` go to `inputs` as `back` says."""
    routed: Tensor = _Route.apply((value, back), *inputs)  # type: ignore[no-untyped-call]
    return routed
