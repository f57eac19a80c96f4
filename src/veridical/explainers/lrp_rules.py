"""How layer-wise relevance propagation hands relevance through one layer: a rule is a choice of shares.

Every rule of a linear layer z = a w + b gives input i the share of its (modified) contribution in the
(modified) pre-activation, R_i = sum_j [a_i w_ij]' / (sum_k [a_k w_kj]' + b') R_j. Rules differ in the
modification alone; each is written as terms (a', w') whose products add up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from veridical.errors import InputError

RuleName = Literal["epsilon", "gamma", "z_plus", "alpha_beta", "flat", "w_square", "z_box"]
RULES: tuple[str, ...] = get_args(RuleName)
Linear = Callable[[Tensor, Tensor], Tensor]
Term = tuple[Tensor, Tensor]

TINY = 1e-9


class _Route(torch.autograd.Function):
    """A value whose backward pass carries relevance by a rule instead of a gradient by the chain rule."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, back: Callable[[Tensor], tuple[Tensor, ...]], *inputs: Tensor
    ) -> Tensor:
        ctx.back = back
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.back(relevance))


def route(value: Tensor, back: Callable[[Tensor], tuple[Tensor, ...]], *inputs: Tensor) -> Tensor:
    """Let relevance that arrives at `value` go to `inputs` as `back` says."""
    routed: Tensor = _Route.apply(value.detach(), back, *inputs)  # type: ignore[no-untyped-call]
    return routed


def stabilised(z: Tensor, epsilon: float) -> Tensor:
    """Push z away from 0 by epsilon in its own direction (0 counts as positive)."""
    return z + torch.where(z >= 0, epsilon, -epsilon)


def shares(
    linear: Linear, terms: Sequence[Term], bias: Tensor | None, relevance: Tensor, epsilon: float = TINY
) -> Tensor:
    """R_i = sum over terms of a'_i * (w'^T (R / z'))_i with z' = sum over terms of w' a' + b'."""
    with torch.enable_grad():
        leaves = [a.detach().requires_grad_(True) for a, _ in terms]
        z = sum(
            (linear(leaf, w) for leaf, (_, w) in zip(leaves, terms, strict=True)),
            torch.zeros(()).to(relevance),
        )
        total = z if bias is None else z + bias
        back = torch.autograd.grad(z, leaves, relevance / stabilised(total.detach(), epsilon))
    return sum((leaf.detach() * g for leaf, g in zip(leaves, back, strict=True)), torch.zeros_like(leaves[0]))


@dataclass(frozen=True)
class Rules:
    """Which rule each kind of layer follows, and the rules' constants.

    `first` is for a first layer that is a convolution, `dense` for every linear layer, `convolution` for
    the rest. `epsilon` pushes denominators off 0, `gamma` favours contributions of the output's own sign,
    `alpha` weighs positive against negative ones (beta = alpha - 1), `low` and `high` bound the inputs.
    """

    first: RuleName = "epsilon"
    convolution: RuleName = "epsilon"
    dense: RuleName = "epsilon"
    epsilon: float = 1e-6
    gamma: float = 0.25
    alpha: float = 2.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        for rule in (self.first, self.convolution, self.dense):
            if rule not in RULES:
                raise InputError(f"no LRP rule is called '{rule}'; choose one of {', '.join(RULES)}")
        if self.epsilon < 0 or self.gamma < 0:
            raise InputError(f"epsilon and gamma are at least 0, got {self.epsilon} and {self.gamma}")
        if self.alpha < 1:
            raise InputError(f"alpha is at least 1 (beta is alpha - 1), got {self.alpha}")
        if not self.low < self.high:
            raise InputError(f"inputs lie between low and high, got {self.low} and {self.high}")

    def back(
        self,
        rule: str,
        linear: Linear,
        a: Tensor,
        w: Tensor,
        b: Tensor | None,
        z: Tensor,
        R: Tensor,
        positive: bool = False,
    ) -> Tensor:
        """The relevance of the inputs a of one linear layer; `positive` if a is known to be at least 0."""
        if rule == "epsilon":
            return shares(linear, [(a, w)], b, R, self.epsilon)
        if rule == "flat":
            return shares(linear, [(torch.ones_like(a), torch.ones_like(w))], None, R)
        if rule == "w_square":
            return shares(linear, [(torch.ones_like(a), w.square())], None, R)
        up, down = w.clamp(min=0), w.clamp(max=0)
        if rule == "z_box":
            low, high = torch.full_like(a, -self.low), torch.full_like(a, -self.high)
            return shares(linear, [(a, w), (low, up), (high, down)], None, R)
        over, under = (None, None) if b is None else (b.clamp(min=0), b.clamp(max=0))
        lifting = [(a, up)] if positive else [(a.clamp(min=0), up), (a.clamp(max=0), down)]
        pulling = [(a, down)] if positive else [(a.clamp(min=0), down), (a.clamp(max=0), up)]
        if rule == "z_plus":
            return shares(linear, lifting, over, R)
        if rule == "alpha_beta":
            plus = self.alpha * shares(linear, lifting, over, R)
            return plus if self.alpha == 1 else plus - (self.alpha - 1) * shares(linear, pulling, under, R)
        favour = self.gamma
        rising = z >= 0
        out = torch.zeros_like(a)
        for terms, extra, of in ((lifting, over, rising), (pulling, under, ~rising)):
            bias = None if b is None or extra is None else b + favour * extra
            more = (
                [(a, w + favour * terms[0][1])]
                if positive
                else [(a, w), *((favour * t, v) for t, v in terms)]
            )
            out = out + shares(linear, more, bias, R * of)
        return out


def pass_on(value: Tensor, a: Tensor) -> Tensor:
    """Activations: all relevance goes to the input as it is."""
    return route(value, lambda R: (R,), a)


def proportional(linear: Callable[[Tensor], Tensor], a: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map without weights to favour (pooling, means, scaling): shares of the plain contributions."""
    with torch.no_grad():
        value = linear(a) if bias is None else linear(a) + bias

    def back(R: Tensor) -> tuple[Tensor, ...]:
        return (shares(lambda x, _: linear(x), [(a, a)], bias, R),)

    return route(value, back, a)


def split_sum(parts: Sequence[Tensor]) -> Tensor:
    """A sum of several branches: each gets the share of its own part in the sum, element by element."""
    values = [part.detach() for part in parts]
    total = torch.stack(torch.broadcast_tensors(*values)).sum(0)

    def back(R: Tensor) -> tuple[Tensor, ...]:
        scaled = R / stabilised(total, TINY)
        return tuple((value * scaled).sum_to_size(value.shape) for value in values)

    return route(total, back, *parts)


def as_relevance(outputs: Tensor) -> Tensor:
    """Turn the gradient that arrives at the model's outputs into relevance: gradient times output."""
    value = outputs.detach()
    return route(value, lambda gradient: (gradient * value,), outputs)
