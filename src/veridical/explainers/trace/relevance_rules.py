"""How layer-wise relevance propagation passes relevance through one layer: a rule is a choice of shares.

Every rule of a linear layer z = a w + b gives input i the share of its (modified) contribution in the
(modified) pre-activation, R_i = sum_j [a_i w_ij]' / (sum_k [a_k w_kj]' + b') R_j. Rules differ in the
modification alone; each is written as terms (a', w') whose products add up to it.
A rule that changes a layer's weights runs that layer again with them, on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.errors import InputError
from veridical.explainers.trace.tracer import Pull, pulled

RuleName = Literal["epsilon", "gamma", "z_plus", "alpha_beta", "flat", "w_square", "z_box"]
RULES: tuple[str, ...] = get_args(RuleName)
TINY = 1e-30
"""Keeps a denominator of 0 from being one; far below any activation, so that it takes nothing of others."""
Term = tuple[Tensor, Tensor]
"""Inputs and weights whose products are a part of the contributions."""


Linear = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Pull]]
"""From inputs, weights and bias to the output, apart from any graph, and the way back."""


# --- linear maps ------------------------------------------------------------------------------------------


def dense(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Pull]:
    """A linear layer."""
    with torch.no_grad():
        z = F.linear(a, w, b)
    return z, lambda g: (g @ w.to(g.dtype)).to(a.dtype)


def convolution(func: Callable[..., Tensor], args: tuple[Any, ...], named: dict[str, Any]) -> Linear:
    """A convolution called with these arguments behind its weights and bias."""

    def run(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Pull]:
        return pulled(lambda leaf: func(leaf, w, b, *args, **named), a)

    return run


# --- shares -----------------------------------------------------------------------------------------------


def over(R: Tensor, z: Tensor, epsilon: float = TINY, scale: Tensor | None = None) -> Tensor:
    """R / z, where z is pushed away from 0 by epsilon in the direction of its sign, times a scale."""
    # no less than the smallest number that is no 0 in this precision with all its digits
    away = torch.full((1,), max(epsilon, torch.finfo(z.dtype).tiny), dtype=z.dtype, device=z.device)
    below = torch.copysign(away, z).add_(z)
    out = torch.div(R, below, out=below)
    return out if scale is None else out.mul_(scale)


def shares(
    linear: Linear, terms: Sequence[Term], bias: Tensor | None, R: Tensor, epsilon: float = TINY
) -> Tensor:
    """R_i = sum over terms of a'_i * (w'^T (R / z'))_i with z' = sum over terms of w' a' + b'."""
    z, pulls = total(linear, terms, bias)
    return shared(z, [(a, pull) for (a, _), pull in zip(terms, pulls, strict=True)], R, epsilon)


def total(linear: Linear, terms: Sequence[Term], bias: Tensor | None) -> tuple[Tensor, list[Pull]]:
    """z' of some terms, and the way back through each of them."""
    parts = [linear(a, w, None if at else bias) for at, (a, w) in enumerate(terms)]
    z, pulls = parts[0][0], [pull for _, pull in parts]
    for more, _ in parts[1:]:
        z = z + more
    return z, pulls


def shared(
    z: Tensor,
    ways: Sequence[tuple[Tensor, Pull]],
    R: Tensor,
    epsilon: float = TINY,
    scale: Tensor | None = None,
) -> Tensor:
    """Every input times what comes back to it from the relevance over z, a sum linear in the inputs."""
    given = over(R, z, epsilon, scale)
    (a, pull), *others = ways
    out = a * pull(given)
    for a, pull in others:
        out.addcmul_(a, pull(given))
    return out


def by_sign(R: Tensor, z: Tensor, p: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """What is passed back to all contributions, and to the positive ones gamma times, by gamma's rule.

    With p and n the positive and negative parts of z = p + n, the denominators are z + gamma p where z is at
    least 0 and z + gamma n elsewhere. There n = z - p adds two numbers of one sign, so that p serves both and
    nothing cancels. A falling output favours its negative contributions: all of them less the positive ones.
    """
    # by arithmetic, which is vectorised where a choice is not
    rising = torch.sign(z).add_(0.5).sign_().add_(1).div_(2)  # 1 where z is at least 0, else 0
    whole = over(R, torch.add(z, torch.lerp(z - p, p, rising), alpha=gamma))
    up = whole * rising
    down = whole - up
    return torch.add(up, down, alpha=1 + gamma), up.sub_(down)


# --- layers -----------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Affine:
    """A factor and a summand for every channel behind a layer: batch norms, and norms written by hand."""

    scale: Tensor
    shift: Tensor

    @classmethod
    def of_batch_norm(
        cls, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Affine:
        """A batch norm by its running statistics."""
        scale = torch.rsqrt(var + eps)
        scale = scale if weight is None else scale * weight
        bias = torch.zeros_like(scale) if bias is None else bias
        return cls(scale, torch.addcmul(bias, mean, scale, value=-1))

    def laid(self, axes: int) -> tuple[Tensor, Tensor]:
        """Factor and summand, fit for tensors of so many axes with channels second."""
        shape = [1] * (axes > 1) + [-1] + [1] * (axes - 2)
        return self.scale.reshape(shape), self.shift.reshape(shape)


@dataclass(eq=False, slots=True)
class Layer:
    """A linear layer at one input: its map, its weights, and its output z with the way back to its inputs.

    `positive` if the inputs are known to be at least 0; `channels` is the axis along which weights differ.
    Where a batch norm follows, z is the norm's output, and `w`, `b` and `pull` are not yet folded.
    `transposed` if the first axis of the weights is not the outputs.
    """

    linear: Linear
    a: Tensor
    w: Tensor
    b: Tensor | None
    z: Tensor
    pull: Pull
    channels: int
    positive: bool = False
    transposed: bool = False
    norm: Affine | None = None

    @classmethod
    def at(cls, linear: Linear, a: Tensor, w: Tensor, b: Tensor | None, channels: int, **how: Any) -> Layer:
        """Run the layer on a, apart from the graph that a belongs to."""
        a = a.detach()
        z, pull = linear(a, w, b)
        return cls(linear, a, w, b, z, pull, channels, **how)

    def normed(self, z: Tensor, norm: Affine) -> Layer:
        """The same layer and a norm behind it that gives z; the layer does not run again."""
        if self.norm is not None:
            before = self.norm
            norm = Affine(before.scale * norm.scale, before.shift * norm.scale + norm.shift)
        return replace(self, z=z, norm=norm)

    def scaled(self, by: Tensor, divides: bool) -> Layer:
        """The same layer and a factor for every channel behind it."""
        factor = by.reshape(-1).reciprocal() if divides else by.reshape(-1)
        return self.normed(self.z / by if divides else self.z * by, Affine(factor, torch.zeros_like(factor)))

    def shifted(self, by: Tensor, factor: float) -> Layer:
        """The same layer and a summand for every channel behind it."""
        by, z = by.reshape(-1) * factor, torch.add(self.z, by, alpha=factor)
        if self.norm is None and self.b is None:
            return replace(self, b=by, z=z)
        return self.normed(z, Affine(torch.ones_like(by), by))

    def has_channels(self, of: Tensor) -> bool:
        """Whether a tensor beside its output has one number for every channel."""
        axis = self.channels % self.z.dim()
        shape = (*[1] * (self.z.dim() - of.dim()), *of.shape)
        return len(shape) == self.z.dim() and shape[axis] == self.z.shape[axis] == of.numel()

    @property
    def foldable(self) -> bool:
        """Whether a batch norm behind it keeps the channels apart along which its weights differ."""
        return not self.transposed and (self.channels > 0 or self.z.dim() == 2)

    @property
    def weights(self) -> Tensor:
        """The weights with the norm folded in."""
        if self.norm is None:
            return self.w
        return self.w * self.norm.scale.reshape(-1, *[1] * (self.w.dim() - 1))

    @property
    def scale(self) -> Tensor | None:
        """What the norm multiplies its inputs by."""
        return None if self.norm is None else self.norm.laid(1 if self.channels < 0 else self.z.dim())[0]

    @property
    def bias(self) -> Tensor | None:
        """The bias with the norm folded in."""
        if self.norm is None:
            return self.b
        return self.norm.shift if self.b is None else self.norm.shift + self.b * self.norm.scale

    def signed(self, raising: bool) -> tuple[list[Term], Tensor | None]:
        """Terms whose products are the positive (or negative) contributions, and that part of the bias."""
        side, other = ({"min": 0.0}, {"max": 0.0}) if raising else ({"max": 0.0}, {"min": 0.0})
        w, bias = self.weights, self.bias
        bias = None if bias is None else bias.clamp(**side)
        if self.positive or bool(self.a.amin() >= 0):  # a check is cheaper than the products it spares
            return [(self.a, w.clamp(**side))], bias
        return [(self.a.clamp(min=0), w.clamp(**side)), (self.a.clamp(max=0), w.clamp(**other))], bias


# --- rules ------------------------------------------------------------------------------------------------


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
        if not self.low < self.high:
            raise InputError(f"inputs lie between low and high, got {self.low} and {self.high}")

    def back(self, rule: str, layer: Layer, R: Tensor) -> Tensor:
        """The relevance of the inputs of one linear layer."""
        if rule == "epsilon":
            return shared(layer.z, [(layer.a, layer.pull)], R, self.epsilon, layer.scale)
        if rule == "flat":
            return _flat(layer, R)
        if rule == "w_square":
            return shares(layer.linear, [(torch.ones_like(layer.a), layer.weights.square())], None, R)
        if rule == "z_box":
            a, w = layer.a, layer.weights
            low, high = torch.full_like(a, -self.low), torch.full_like(a, -self.high)
            terms = [(a, w), (low, w.clamp(min=0)), (high, w.clamp(max=0))]
            return shares(layer.linear, terms, None, R)
        if rule == "gamma":
            return self._gamma(layer, R)
        if rule == "z_plus" or self.alpha == 1:
            return shares(layer.linear, *layer.signed(True), R)
        plus, minus = (shares(layer.linear, *layer.signed(up), R) for up in (True, False))
        return plus.mul_(self.alpha).sub_(minus, alpha=self.alpha - 1)

    def _gamma(self, layer: Layer, R: Tensor) -> Tensor:
        """Contributions of the sign of z count 1 + gamma times."""
        terms, bias = layer.signed(True)
        p, pulls = total(layer.linear, terms, bias)
        every, positive = by_sign(R, layer.z, p, self.gamma)
        back = layer.pull(every if layer.scale is None else every.mul_(layer.scale))
        if len(pulls) == 1:
            # all inputs count by their own value either way
            return layer.a * torch.add(back, pulls[0](positive), alpha=self.gamma)
        out = layer.a * back
        for (a, _), pull in zip(terms, pulls, strict=True):
            out.addcmul_(a, pull(positive), value=self.gamma)
        return out


def _flat(layer: Layer, R: Tensor) -> Tensor:
    """Every input under an output's window gets the same: all inputs and weights taken as 1.

    Outputs of one place then share their denominators and all input channels get alike, so one channel
    stands for all of them, unless channels go in groups.
    """
    a, w, axis = layer.a, layer.w, layer.channels
    if layer.transposed or w.shape[1] != a.shape[axis]:
        return shares(layer.linear, [(torch.ones_like(a), torch.ones_like(w))], None, R)
    one = torch.ones_like(a.narrow(axis, 0, 1))
    thin = shares(layer.linear, [(one, w.new_ones(1, 1, *w.shape[2:]))], None, R.sum(axis, keepdim=True))
    return (thin / a.shape[axis]).expand_as(a)
