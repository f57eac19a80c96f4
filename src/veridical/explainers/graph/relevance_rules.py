"""How layer-wise relevance propagation hands relevance through one layer: a rule is a choice of shares.

Every rule of a linear layer z = a w + b gives input i the share of its (modified) contribution in the
(modified) pre-activation, R_i = sum_j [a_i w_ij]' / (sum_k [a_k w_kj]' + b') R_j. Rules differ in the
modification alone; each is written as terms (a', w') whose products add up to it.

How often a rule goes through a layer is told and counted in `relevance_work`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.explainers.graph.batch_norm import Affine, BatchNorm
from veridical.explainers.graph.linear_maps import Linear, Pull, without_graph
from veridical.explainers.graph.plan import Inner
from veridical.explainers.graph.products import Product, dense
from veridical.explainers.graph.relevance_elements import by_sign
from veridical.explainers.graph.relevance_flow import Relevant, Term, _shared, _total, shares
from veridical.explainers.graph.weight_parts import Parts, kept_in

RuleName = Literal["epsilon", "gamma", "z_plus", "alpha_beta", "flat", "w_square", "z_box"]
RULES: tuple[str, ...] = get_args(RuleName)


@dataclass(eq=False, slots=True)
class Layer(Inner):
    """A linear layer at one input: its map, its weights, and its answer z with the graph that made it.

    `positive` if the inputs are known to be at least 0; `channels` is the axis along which weights differ.
    Where a batch norm follows, z is the norm's answer, and `w`, `b` and `pull` are not yet folded.
    `transposed` if the first axis of the weights is not the outputs; `parts` where parts of the weights are
    kept; `terms` is how many products are summed to each output, where the weights' shape does not tell.
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
    norm: BatchNorm | Affine | None = None
    parts: Parts | None = None
    terms: int = 0

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
        parts: Parts | None = None,
        terms: int = 0,
    ) -> Layer:
        """Run the layer on a, apart from the graph that a belongs to."""
        a = without_graph(a)
        z, pull = linear(a, w, b)
        return cls(linear, a, w, b, z, pull, channels, positive, transposed, None, parts, terms)

    def normed(self, norm: BatchNorm) -> Layer:
        """The same layer and the batch norm behind it; it does not run again."""
        if self.norm is None:
            return self._with(norm(self.z), norm, self.parts)
        (scale, shift), (more, beyond) = self.norm.laid(), norm.laid()
        return self._with(norm(self.z), Affine(scale * more, shift * more + beyond))

    def scaled(self, by: Tensor, divides: bool) -> Layer:
        """The same layer and a factor for every channel behind it; it does not run again."""
        factor = by.reshape(-1).reciprocal() if divides else by.reshape(-1)
        scale, shift = (torch.ones_like(factor), torch.zeros_like(factor))
        if self.norm is not None:
            scale, shift = self.norm.laid()
        z = self.z / by if divides else self.z * by
        return self._with(z, Affine(scale * factor, shift * factor))

    def shifted(self, by: Tensor, factor: float) -> Layer:
        """The same layer and a summand for every channel behind it; it does not run again."""
        by, z = by.reshape(-1) * factor, torch.add(self.z, by, alpha=factor)
        if self.norm is None and self.b is None:
            return replace(self, b=by, z=z, parts=None)
        scale, shift = (torch.ones_like(by), torch.zeros_like(by)) if self.norm is None else self.norm.laid()
        return self._with(z, Affine(scale, shift + by))

    def _with(self, z: Tensor, norm: BatchNorm | Affine, parts: Parts | None = None) -> Layer:
        how = (self.channels, self.positive, self.transposed, norm, parts, self.terms)
        return Layer(self.linear, self.a, self.w, self.b, z, self.pull, *how)

    def has_channels(self, of: Tensor) -> bool:
        """Whether a tensor beside its answer has one number for every channel."""
        axis = self.channels % self.z.dim()
        shape = (*[1] * (self.z.dim() - of.dim()), *of.shape)
        return len(shape) == self.z.dim() and shape[axis] == self.z.shape[axis] == of.numel()

    @property
    def foldable(self) -> bool:
        """Whether a batch norm behind it keeps the channels apart along which its weights differ."""
        return not self.transposed and (self.channels > 0 or self.z.dim() == 2)

    @property
    def multiplications(self) -> int:
        """Multiplications of one run."""
        if self.terms:
            return self.z.numel() * self.terms
        over = self.a if self.transposed else self.z
        return over.numel() * (self.w.numel() // self.w.shape[0])

    @property
    def weights(self) -> Tensor:
        """The weights with the batch norm folded in."""
        return self.w if self.norm is None else _scaled(self.w, self.norm.laid()[0])

    @property
    def scale(self) -> Tensor | None:
        """What the batch norm multiplies its inputs by."""
        return None if self.norm is None else self.norm.laid(1 if self.channels < 0 else self.z.dim())[0]

    @property
    def bias(self) -> Tensor | None:
        """The bias with the batch norm folded in."""
        if self.norm is None:
            return self.b
        scale, shift = self.norm.laid()
        return shift if self.b is None else shift + self.b * scale

    def signed(self, raising: bool) -> tuple[list[Term], Tensor | None]:
        """Terms whose products are the positive (or negative) contributions, and that part of the bias."""
        one_sign, norm = self.positive or self._has_no_negative(), self.norm
        of = (self.w, self.b) if norm is None else (self.w, self.b, *norm.tensors)

        def make() -> tuple[Tensor, Tensor | None, Tensor | None]:
            w, bias = self.weights, self.bias
            side, other = ({"min": 0.0}, {"max": 0.0}) if raising else ({"max": 0.0}, {"min": 0.0})
            opposite = None if one_sign else w.clamp(**other)
            return w.clamp(**side), opposite, None if bias is None else bias.clamp(**side)

        own, opposite, bias = kept_in(self.parts, (raising, one_sign), of, make)
        if opposite is None:
            return [(self.a, own)], bias
        return [(self.a.clamp(min=0), own), (self.a.clamp(max=0), opposite)], bias

    def _has_no_negative(self) -> bool:
        # on a CPU a look is cheaper than the products with zeros it spares; on a GPU it would wait
        return self.a.device.type == "cpu" and bool(self.a.amin() >= 0)


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

    def back(self, rule: str, layer: Layer, R: Relevant) -> Relevant:
        """The relevance of the inputs of one linear layer."""
        if rule == "epsilon":
            return _shared(layer.z, [(layer.a, layer.pull)], R, self.epsilon, layer.scale)
        if rule == "flat":
            return _flat(layer, dense(R))
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
        R = dense(R)
        plus, minus = (dense(shares(layer.linear, *layer.signed(up), R)) for up in (True, False))
        out: Tensor = plus.mul_(self.alpha).sub_(minus, alpha=self.alpha - 1)
        return out

    def _gamma(self, layer: Layer, R: Relevant) -> Relevant:
        """Contributions of the sign of z count 1 + gamma times."""
        terms, bias = layer.signed(True)
        p, pulls = _total(layer.linear, terms, bias)
        every, positive = by_sign(R, layer.z, p, self.gamma)
        back = layer.pull(every if layer.scale is None else every.mul_(layer.scale))
        if len(pulls) == 1:
            # all inputs count by their own value either way
            return Product(layer.a, torch.add(back, pulls[0](positive), alpha=self.gamma))
        out = layer.a * back
        for (a, _), pull in zip(terms, pulls, strict=True):
            out.addcmul_(a, pull(positive), value=self.gamma)
        return out


def _flat(layer: Layer, R: Tensor) -> Relevant:
    """Every input under an output's window gets the same: all inputs and weights taken as 1.

    Outputs of one place then share their denominators and all input channels get alike, so one channel
    stands for all of them, unless channels go in groups.
    """
    a, w, axis = layer.a, layer.w, layer.channels
    if layer.transposed or w.shape[1] != a.shape[axis]:
        return shares(layer.linear, [(torch.ones_like(a), torch.ones_like(w))], None, R)
    one = torch.ones_like(a.narrow(axis, 0, 1))
    thin = shares(layer.linear, [(one, w.new_ones(1, 1, *w.shape[2:]))], None, R.sum(axis, keepdim=True))
    return (dense(thin) / a.shape[axis]).expand_as(a)


def _scaled(w: Tensor, scale: Tensor) -> Tensor:
    """Weights times one number per output."""
    return w * scale.reshape(-1, *[1] * (w.dim() - 1))
