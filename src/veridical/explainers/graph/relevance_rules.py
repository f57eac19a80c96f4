"""How layer-wise relevance propagation hands relevance through one layer: a rule is a choice of shares.

Every rule of a linear layer z = a w + b gives input i the share of its (modified) contribution in the
(modified) pre-activation, R_i = sum_j [a_i w_ij]' / (sum_k [a_k w_kj]' + b') R_j. Rules differ in the
modification alone; each is written as terms (a', w') whose products add up to it.

How often a rule goes through a layer is told and counted in `relevance_work`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.explainers.graph.linear_maps import Linear, Pull, leaf_of
from veridical.explainers.graph.relevance_elements import TINY, by_sign, constant, over
from veridical.model.late_checks import can_look

RuleName = Literal["epsilon", "gamma", "z_plus", "alpha_beta", "flat", "w_square", "z_box"]
RULES: tuple[str, ...] = get_args(RuleName)
Term = tuple[Tensor, Tensor]


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
class BatchNorm:
    """A batch norm by its running statistics: a linear layer that keeps channels apart."""

    mean: Tensor
    var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def __call__(self, z: Tensor) -> Tensor:
        return torch.batch_norm(
            z, self.weight, self.bias, self.mean, self.var, False, 0.0, self.eps, torch.backends.cudnn.enabled
        )

    def pull(self, g: Tensor) -> Tensor:
        """What comes back through it: every channel times its scale, in one kernel."""
        # the second place is for what went in, of which only the shape is read; no batch was measured
        none = constant(0.0, g.dtype, g.device)[:0]
        found: Tensor = torch.ops.aten.native_batch_norm_backward.default(
            *(g, g, self.weight, self.mean, self.var, none, none, False, self.eps, [True, False, False])
        )[0]
        return found

    @cached_property
    def laid(self) -> tuple[Tensor, Tensor]:
        """What it multiplies by and what it adds."""
        scale = torch.rsqrt(self.var + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        bias = torch.zeros_like(scale) if self.bias is None else self.bias
        return scale, torch.addcmul(bias, self.mean, scale, value=-1)

    def alone(self, a: Tensor) -> Tensor:
        """The norm with no layer before it to fold into."""
        scale, shift = (v.reshape(1, -1, *[1] * (a.dim() - 2)) for v in self.laid)
        return proportional(torch.mul, (a, scale), {}, shift)


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer at one input: its map, its weights, and its answer z with the graph that made it.

    `positive` if the inputs are known to be at least 0; `channels` is the axis along which weights differ.
    Where a batch norm follows, z is the norm's answer, and `w` and `b` are not yet folded.
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
    transposed: bool = False
    norm: BatchNorm | None = None

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
        return cls(linear, a, w, b, z, pull, channels, positive, transposed)

    def normed(self, norm: BatchNorm) -> Layer:
        """The same layer and the batch norm behind it; it does not run again."""
        back = self.pull
        return replace(self, z=norm(self.z), pull=lambda g: back(norm.pull(g)), norm=norm)

    @property
    def multiplications(self) -> int:
        """Multiplications of one run."""
        over = self.a if self.transposed else self.z
        return over.numel() * (self.w.numel() // len(self.w))

    @property
    def weights(self) -> Tensor:
        """The weights with the batch norm folded in."""
        return self.w if self.norm is None else _scaled(self.w, self.norm.laid[0])

    @property
    def bias(self) -> Tensor | None:
        """The bias with the batch norm folded in."""
        if self.norm is None:
            return self.b
        scale, shift = self.norm.laid
        return shift if self.b is None else shift + self.b * scale

    def signed(self, raising: bool) -> tuple[list[Term], Tensor | None]:
        """Terms whose products are the positive (or negative) contributions, and that part of the bias."""
        up, down = ({"min": 0.0}, {"max": 0.0}) if raising else ({"max": 0.0}, {"min": 0.0})
        bias, w = self.bias, self.weights
        bias = None if bias is None else bias.clamp(**up)
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
        if self.epsilon < 0 or self.gamma < 0:
            raise InputError(f"epsilon and gamma are at least 0, got {self.epsilon} and {self.gamma}")
        if self.alpha < 1:
            raise InputError(f"alpha is at least 1 (beta is alpha - 1), got {self.alpha}")
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


def pass_on(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Activations: all relevance goes to the input as it is."""
    with torch.no_grad():
        value = func(*args, **kwargs)
    return route(value, lambda R: (R,), args[0])


def proportional(
    func: Callable[..., Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bias: Tensor | None = None,
    at: int = 0,
) -> Tensor:
    """A map that is linear in args[at], without weights to favour: shares of the plain contributions."""
    a = args[at]
    leaf = leaf_of(a)
    with torch.enable_grad():
        value = func(*args[:at], leaf, *args[at + 1 :], **kwargs)
        value = value if bias is None else value + bias
    z, held = value.detach(), leaf.detach()

    def back(R: Tensor) -> tuple[Tensor]:
        return (_shared(z, [(held, lambda g: torch.autograd.grad(value, leaf, g)[0])], R),)

    return route(z, back, a)


def split_sum(a: Any, b: Any, factor: float = 1) -> Tensor:
    """a + factor b: each gets the share of its own part in the sum, element by element."""
    like = a if isinstance(a, Tensor) else b
    parts = [v if isinstance(v, Tensor) else torch.as_tensor(v).to(like) for v in (a, b)]
    values = [part.detach() for part in parts]
    if factor != 1:
        values[1] = values[1] * factor
    total = values[0] + values[1]

    def back(R: Tensor) -> tuple[Tensor, ...]:
        scaled = over(R, total)
        return tuple((value * scaled).sum_to_size(value.shape) for value in values)

    return route(total, back, *parts)


def halves(func: Callable[..., Tensor], a: Tensor, b: Tensor, how: dict[str, Any]) -> Tensor:
    """A product of which each factor takes half."""
    with torch.no_grad():
        value = func(a, b, **how)
    shapes = a.shape, b.shape
    return route(value, lambda R: tuple((R / 2).sum_to_size(shape) for shape in shapes), a, b)


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
    return proportional(lambda t: (t - t.mean(axes, keepdim=True)) * scale, (input,), {}, shift)
