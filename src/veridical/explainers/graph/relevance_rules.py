"""How layer-wise relevance propagation hands relevance through one layer: a rule is a choice of shares.

Every rule of a linear layer z = a w + b gives input i the share of its (modified) contribution in the
(modified) pre-activation, R_i = sum_j [a_i w_ij]' / (sum_k [a_k w_kj]' + b') R_j. Rules differ in the
modification alone; each is written as terms (a', w') whose products add up to it.

How often a rule goes through a layer is told and counted in `relevance_work`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.explainers.graph.linear_maps import Linear, Pull, leaf_of
from veridical.explainers.graph.relevance_elements import TINY, by_sign, over
from veridical.model.late_checks import can_look

RuleName = Literal["epsilon", "gamma", "z_plus", "alpha_beta", "flat", "w_square", "z_box"]
RULES: tuple[str, ...] = get_args(RuleName)
Term = tuple[Tensor, Tensor]


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


def shares(
    linear: Linear, terms: Sequence[Term], bias: Tensor | None, relevance: Tensor, epsilon: float = TINY
) -> Tensor:
    """R_i = sum over terms of a'_i * (w'^T (R / z'))_i with z' = sum over terms of w' a' + b'."""
    z, pulls = _total(linear, terms, bias)
    return _shared(z, [(a, pull) for (a, _), pull in zip(terms, pulls, strict=True)], relevance, epsilon)


def _total(linear: Linear, terms: Sequence[Term], bias: Tensor | None) -> tuple[Tensor, list[Pull]]:
    parts = [linear(a, w, None if at else bias) for at, (a, w) in enumerate(terms)]
    total, pulls = parts[0][0], [pull for _, pull in parts]
    for more, _ in parts[1:]:
        total = total + more
    return total, pulls


def _shared(z: Tensor, ways: Sequence[tuple[Tensor, Pull]], R: Tensor, epsilon: float = TINY) -> Tensor:
    """Every input times what comes back to it from the relevance over z, a sum linear in the inputs."""
    given = over(R, z, epsilon)
    (a, pull), *others = ways
    out = a * pull(given)
    for a, pull in others:
        out.addcmul_(a, pull(given))
    return out


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer at one input: its map, its weights, and its answer z with the graph that made it.

    `positive` if the inputs are known to be at least 0; `channels` is the axis along which weights differ.
    Where a batch norm follows, `b` is folded and z is the norm's answer; `scale` is what is not yet in `w`.
    `transposed` if the first axis of the weights is the inputs.
    """

    linear: Linear
    a: Tensor
    w: Tensor
    b: Tensor | None
    z: Tensor
    pull: Pull
    channels: int
    positive: bool = False
    scale: Tensor | None = None
    transposed: bool = False

    @classmethod
    def at(
        cls,
        linear: Linear,
        a: Tensor,
        w: Tensor,
        b: Tensor | None,
        channels: int,
        positive: bool = False,
        transposed: bool = False,
    ) -> Layer:
        """Run the layer on a, apart from the graph that a belongs to."""
        a = a.detach()
        z, pull = linear(a, w, b)
        return cls(linear, a, w, b, z, pull, channels, positive, None, transposed)

    def normed(self, scale: Tensor, shift: Tensor) -> Layer:
        """The same layer and the batch norm behind it, by its scale and shift; it does not run again."""
        laid, moved = (v.reshape(-1, *[1] * self._behind) for v in (scale, shift))
        b = shift if self.b is None else shift + self.b * scale
        z, back = torch.addcmul(moved, self.z, laid), self.pull
        return replace(self, b=b, z=z, pull=lambda g: back(g * laid), scale=scale)

    @property
    def _behind(self) -> int:
        """How many axes lie behind the channels."""
        return self.z.dim() - 1 - self.channels if self.channels > 0 else 0

    @property
    def multiplications(self) -> int:
        """Multiplications of one run."""
        over = self.a if self.transposed else self.z
        return over.numel() * (self.w.numel() // len(self.w))

    @property
    def weights(self) -> Tensor:
        """The weights with the batch norm folded in."""
        return self.w if self.scale is None else _scaled(self.w, self.scale)

    def signed(self, raising: bool) -> tuple[list[Term], Tensor | None]:
        """Terms whose products are the positive (or negative) contributions, and that part of the bias."""
        up, down = ({"min": 0.0}, {"max": 0.0}) if raising else ({"max": 0.0}, {"min": 0.0})
        bias = None if self.b is None else self.b.clamp(**up)
        w = self.weights
        if self.positive or self._has_no_negative():
            return [(self.a, w.clamp(**up))], bias
        a = self.a
        return [(a.clamp(min=0), w.clamp(**up)), (a.clamp(max=0), w.clamp(**down))], bias

    def _has_no_negative(self) -> bool:
        # on a CPU a look is cheaper than the products with zeros it spares; on a GPU it would wait
        return can_look(self.a.device) and bool(self.a.amin() >= 0)


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
            return _shared(layer.z, [(layer.a, layer.pull)], R, self.epsilon)
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
        plus = shares(layer.linear, *layer.signed(True), R)
        if rule == "z_plus" or self.alpha == 1:
            return plus
        minus = shares(layer.linear, *layer.signed(False), R)
        return plus.mul_(self.alpha).sub_(minus, alpha=self.alpha - 1)

    def _gamma(self, layer: Layer, R: Tensor) -> Tensor:
        """Contributions of the sign of z count 1 + gamma times."""
        terms, bias = layer.signed(True)
        p, pulls = _total(layer.linear, terms, bias)
        every, positive = by_sign(R, layer.z, p, self.gamma)
        out = layer.a * layer.pull(every)
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


def _scaled(w: Tensor, scale: Tensor) -> Tensor:
    """Weights times one number per output."""
    return w * scale.reshape(-1, *[1] * (w.dim() - 1))


def batch_norm(a: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """A batch norm with no layer to fold into: a linear layer that keeps channels apart."""
    scale, shift = (v.reshape(1, -1, *[1] * (a.dim() - 2)) for v in (scale, shift))
    return proportional(lambda x: x * scale, a, shift)


def scale_and_shift(
    mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """What a batch norm multiplies by and adds, given its statistics and weights."""
    spread = torch.rsqrt(var + eps)
    scale = spread if weight is None else spread * weight.detach()
    return scale, -mean * scale if bias is None else torch.addcmul(bias.detach(), mean, scale, value=-1)


def pass_on(value: Tensor, a: Tensor) -> Tensor:
    """Activations: all relevance goes to the input as it is."""
    return route(value, lambda R: (R,), a)


def proportional(linear: Callable[[Tensor], Tensor], a: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map without weights to favour (pooling, means, scaling): shares of the plain contributions."""
    leaf = leaf_of(a)
    with torch.enable_grad():
        value = linear(leaf) if bias is None else linear(leaf) + bias
    z, held = value.detach(), leaf.detach()

    def back(R: Tensor) -> tuple[Tensor]:
        return (_shared(z, [(held, lambda g: torch.autograd.grad(value, leaf, g)[0])], R),)

    return route(z, back, a)


def split_sum(parts: Sequence[Tensor]) -> Tensor:
    """A sum of several branches: each gets the share of its own part in the sum, element by element."""
    values = [part.detach() for part in parts]
    total = sum(values[1:], values[0])

    def back(R: Tensor) -> tuple[Tensor, ...]:
        scaled = over(R, total)
        return tuple((value * scaled).sum_to_size(value.shape) for value in values)

    return route(total, back, *parts)


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
) -> Tensor:
    """Layer norm with its spread held constant: subtract the mean, scale, shift."""
    axes = tuple(range(-len(normalized_shape), 0))
    spread = torch.rsqrt(input.detach().var(axes, correction=0, keepdim=True) + eps)
    scale = spread if weight is None else spread * weight.detach()
    shift = None if bias is None else bias.detach()
    return proportional(lambda t: (t - t.mean(axes, keepdim=True)) * scale, input, shift)
