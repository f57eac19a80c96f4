"""A value whose backward pass carries what a rule says instead of a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from veridical.explainers.graph.operations import mapped, tensors
from veridical.explainers.graph.products import dense

Back = Callable[[Any], Sequence[Any]]
"""From what arrives at a value to what goes to each of its inputs: tensors, or products not yet multiplied.

Of a value in several parts, a list arrives, with None for what nothing came to.
"""


def ungraded(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """An answer that no gradient goes through."""
    if not torch.is_grad_enabled():
        return func(*args, **kwargs)
    with torch.no_grad():
        return func(*args, **kwargs)


class Routed:
    """A value without a graph, and the way back from it to `inputs`."""

    __slots__ = ("back", "inputs", "value")

    def __init__(self, value: Any, back: Back, *inputs: Tensor) -> None:
        self.value, self.back, self.inputs = value, back, inputs

    def joined(self) -> Tensor:
        """The value as a part of autograd's graph."""
        return route(self.value, self.back, *self.inputs)


class _Route(torch.autograd.Function):
    """A value whose backward pass carries relevance by a rule instead of a gradient by the chain rule."""

    @staticmethod
    def forward(ctx: Any, given: tuple[Tensor, Back], *inputs: Tensor) -> Tensor:
        value, ctx.back = given
        # another tensor of the same numbers: what `back` holds must not hold its own graph
        return value.detach()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *map(dense, ctx.back(relevance)))


def route(value: Tensor, back: Back, *inputs: Tensor) -> Tensor:
    """Let relevance that arrives at `value` go to `inputs` as `back` says."""
    routed: Tensor = _Route.apply((value, back), *inputs)  # type: ignore[no-untyped-call]
    return routed


def reshaped(func: Callable[..., Tensor], args: Any, kwargs: Any, places: tuple[int, ...]) -> Routed:
    """A tensor in another shape, its numbers in the order they had."""
    before = args[0].shape
    return Routed(func(*args, **kwargs), lambda R: (dense(R).reshape(before),))


def alone(func: Callable[..., Any], args: Any, kwargs: Any, places: tuple[int, ...]) -> Routed:
    """An operation in a small graph of its own, in which autograd finds the way back to some tensors."""
    leaves: list[Tensor] = []
    at = iter(range(len(list(tensors((args, kwargs))))))

    def leaf(value: Tensor) -> Tensor:
        if next(at) not in places:
            return value
        leaves.append(value.detach().requires_grad_(True))
        return leaves[-1]

    with torch.enable_grad():
        value = func(*mapped(leaf, args), **mapped(leaf, kwargs))
    made = list(tensors(value))

    def back(arriving: Any) -> Sequence[Tensor | None]:
        given = arriving if type(arriving) is list else [arriving]
        pairs = [(v, dense(R)) for v, R in zip(made, given, strict=True) if R is not None]
        found, above = zip(*pairs, strict=True)
        return torch.autograd.grad(found, leaves, above, allow_unused=True)

    apart = value.detach() if isinstance(value, Tensor) else tuple(part.detach() for part in value)
    return Routed(apart, back)
