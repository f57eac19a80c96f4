"""Relevance through what has no weights to favour: sums, products, averages, activations, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from veridical.explainers.graph.linear_maps import Linear, Pull, leaf_of, without_graph
from veridical.explainers.graph.pools import mean_of_all
from veridical.explainers.graph.products import Product, dense
from veridical.explainers.graph.relevance_elements import TINY, over
from veridical.explainers.graph.routes import Routed, pulling, route, ungraded

Term = tuple[Tensor, Tensor]
Relevant = Tensor | Product


def shares(
    linear: Linear, terms: Sequence[Term], bias: Tensor | None, relevance: Relevant, epsilon: float = TINY
) -> Relevant:
    """R_i = sum over terms of a'_i * (w'^T (R / z'))_i with z' = sum over terms of w' a' + b'."""
    z, pulls = _total(linear, terms, bias)
    return _shared(z, [(a, pull) for (a, _), pull in zip(terms, pulls, strict=True)], relevance, epsilon)


def _total(linear: Linear, terms: Sequence[Term], bias: Tensor | None) -> tuple[Tensor, list[Pull]]:
    parts = [linear(a, w, None if at else bias) for at, (a, w) in enumerate(terms)]
    total, pulls = parts[0][0], [pull for _, pull in parts]
    for more, _ in parts[1:]:
        total = total + more
    return total, pulls


def _shared(
    z: Tensor,
    ways: Sequence[tuple[Tensor, Pull]],
    R: Relevant,
    epsilon: float = TINY,
    scale: Tensor | None = None,
) -> Relevant:
    """Every input times what comes back to it from the relevance over z, a sum linear in the inputs."""
    given = over(R, z, epsilon, scale)
    (a, pull), *others = ways
    if not others:
        return Product(a, pull(given))
    out = a * pull(given)
    for a, pull in others:
        out.addcmul_(a, pull(given))
    return out


def pass_on(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Routed:
    """Activations: all relevance goes to the input as it is."""
    return Routed(ungraded(func, args, kwargs), _as_it_is, args[0])


def _as_it_is(R: Relevant) -> tuple[Relevant]:
    return (R,)


def proportional(
    func: Callable[..., Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bias: Tensor | None = None,
    at: int = 0,
) -> Routed:
    """A map that is linear in args[at], without weights to favour: shares of the plain contributions."""
    a = args[at]
    known = mean_of_all(func, args, kwargs) if bias is None and at == 0 else None
    if known is not None:
        value, pull = known
        held = without_graph(a)
        return Routed(value, lambda R: (_shared(value, [(held, pull)], R),), a)
    leaf = leaf_of(a)
    with torch.enable_grad():
        value = func(*args[:at], leaf, *args[at + 1 :], **kwargs)
        value = value if bias is None else value + bias
    z, held, way = value.detach(), leaf.detach(), pulling([value], [leaf])

    def back(R: Relevant) -> tuple[Relevant]:
        return (_shared(z, [(held, lambda g: way([g])[0])], R),)

    return Routed(z, back, a)


def split_sum(a: Any, b: Any, factor: float = 1) -> Routed:
    """a + factor b: each gets the share of its own part in the sum, element by element."""
    like = a if isinstance(a, Tensor) else b
    parts = [v if isinstance(v, Tensor) else torch.as_tensor(v).to(like) for v in (a, b)]
    values = [without_graph(part) for part in parts]
    if factor != 1:
        values[1] = values[1] * factor
    total = values[0] + values[1]

    def back(R: Relevant) -> tuple[Relevant, ...]:
        scaled = over(R, total)
        return tuple(
            Product(v, scaled) if v.shape == total.shape else (v * scaled).sum_to_size(v.shape)
            for v in values
        )

    return Routed(total, back, *parts)


def halves(func: Callable[..., Tensor], a: Tensor, b: Tensor, how: dict[str, Any]) -> Routed:
    """A product of which each factor takes half."""
    value = ungraded(func, (a, b), how)
    shapes = a.shape, b.shape
    return Routed(value, lambda R: tuple((dense(R) / 2).sum_to_size(shape) for shape in shapes), a, b)


def as_relevance(outputs: Tensor) -> Tensor:
    """Turn the gradient that arrives at the model's outputs into relevance: gradient times output."""
    value = outputs.detach()
    return route(value, lambda gradient: (gradient * value,), outputs)


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Routed:
    """Layer norm with its spread held constant: subtract the mean, scale, shift."""
    axes = tuple(range(-len(normalized_shape), 0))
    spread = torch.rsqrt(input.detach().var(axes, correction=0, keepdim=True) + eps)
    scale = spread if weight is None else spread * weight.detach()
    shift = None if bias is None else bias.detach()
    return proportional(lambda t: (t - t.mean(axes, keepdim=True)) * scale, (input,), {}, shift)
