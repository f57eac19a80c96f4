"""A value whose backward pass carries what a rule says instead of a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from veridical.explainers.graph.operations import RESHAPING, mapped, tensors
from veridical.explainers.graph.products import dense

Back = Callable[[Any], Sequence[Any]]
"""From what arrives at a value to what goes to each of its inputs: tensors, or products not yet multiplied.

Of a value in several parts, a list arrives, with None for what nothing came to.
"""
Pulling = Callable[[Sequence[Tensor | None]], Any]
"""From what arrives at each of some values to what goes to each of their leaves."""


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
    pull = pulling(list(tensors(value)), leaves)

    def back(arriving: Any) -> Sequence[Tensor | None]:
        if type(arriving) is list:
            return pull([None if R is None else dense(R) for R in arriving])
        return pull([dense(arriving)])

    apart = value.detach() if isinstance(value, Tensor) else tuple(part.detach() for part in value)
    return Routed(apart, back)


def pulling(made: Sequence[Tensor], leaves: Sequence[Tensor]) -> Pulling:
    """The way back from values to the leaves of their small graph, which may be gone more than once.

    Where one operation made them, its node is asked directly: to start autograd costs ten times as much.
    """

    def by_engine(arriving: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        pairs = [(v, R) for v, R in zip(made, arriving, strict=True) if R is not None]
        values, above = zip(*pairs, strict=True)
        return torch.autograd.grad(values, leaves, above, retain_graph=True, allow_unused=True)

    if len(made) == len(leaves) == 1 and made[0] is leaves[0]:
        return lambda arriving: arriving
    node: Any = made[0].grad_fn
    if node is None or any(v.grad_fn is not node or v.output_nr != at for at, v in enumerate(made)):
        return by_engine
    ends = [getattr(end, "variable", None) for end, _ in node.next_functions]
    places = [at for leaf in leaves for at, end in enumerate(ends) if end is leaf]
    if len(places) != len(leaves):
        return by_engine  # several operations, one behind the other

    def directly(arriving: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        found = node(*arriving)
        parts = found if type(found) is tuple else (found,)
        if all(parts[at] is None for at in places):
            # so it answers while `torch.autograd.grad` runs, which asks for other leaves
            return by_engine(arriving)
        return [_fitting(parts[at], leaf) for at, leaf in zip(places, leaves, strict=True)]

    return directly


def _fitting(part: Tensor | None, leaf: Tensor) -> Tensor | None:
    """A gradient as autograd hands it over: added up over what was repeated, in the dtype of its leaf."""
    if part is None or (part.shape == leaf.shape and part.dtype == leaf.dtype):
        return part
    return part.sum_to_size(leaf.shape).to(leaf.dtype)


def by_autograd(
    plan: Any, name: str, func: Callable[..., Any], args: Any, kwargs: Any, known: Any = None
) -> Any:
    """What an operation answers, with the way back that autograd finds; written down if a plan is made.

    `known` is the step that a plan takes instead, where there is a quicker one than to ask autograd.
    """
    value = func(*args, **kwargs)
    if plan is not None:
        given = list(tensors((args, kwargs)))
        places = tuple(at for at, v in enumerate(given) if v.requires_grad)
        quick = reshaped if name in RESHAPING else known
        step = quick if quick is not None and places == (0,) else alone
        plan.note(step, (func, args, kwargs, places), {}, value, [given[at] for at in places])
    return value
