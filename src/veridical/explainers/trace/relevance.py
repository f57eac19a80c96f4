"""Relevance (LRP) through every operation of a model: each takes from above what its share is.

Attention mixes values by weights p = softmax(q k') and a norm divides by a spread; both are held constant, so
that each block is linear in what it carries and the epsilon rule applies (Ali et al. 2022, "XAI for
Transformers: better explanations through conservative propagation"). Queries and keys get none. A gate
decides how much of a signal passes, and the signal takes all (Arras et al. 2017); where an activation and
another value are multiplied, as in SwiGLU, each takes half (Achtibat et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from veridical.errors import NotApplicableError
from veridical.explainers.trace import decompose
from veridical.explainers.trace.operations import POSITIVE, TURNING, bound, kind_of, tensors
from veridical.explainers.trace.relevance_rules import (
    Affine,
    Layer,
    Linear,
    Rules,
    convolution,
    dense,
    over,
    shared,
)
from veridical.explainers.trace.tracer import (
    Detached,
    Tracer,
    pulled,
    route,
    without_graph,
)

_SIZES = frozenset({"sqrt", "rsqrt", "reciprocal", "std", "norm", "vector_norm", "pow"})
_SPREADING = frozenset(
    "expand expand_as view_as reshape_as repeat broadcast_to tile repeat_interleave".split()
)
_SETTLED = frozenset({"activation", "gate", "batch_norm"})
_TWO = "no rule is stated for a product of two activations"


class Relevance(Tracer):
    """LRP: what is passed back as the gradient is relevance."""

    method = "LRP"

    def __init__(self, x: Tensor, rules: Rules, side: Iterable[Tensor] = ()) -> None:
        super().__init__(x)
        self.rules = rules
        self.raw = {x}  # the input itself, perhaps reshaped or rescaled
        self.positive = set[Tensor]()  # known to be at least 0
        # constants of each row: beside one row they look like those of the model
        self.rowed = set(side)
        self.gates = set[Tensor]()  # outputs of a sigmoid: they weigh a signal
        self.bounded = set[Tensor]()  # between 0 and a number: a gate by hand, such as relu6(z + 3) / 6
        self.activated = set[Tensor]()  # outputs of other activations
        self.layers: dict[Tensor, tuple[Layer, str, Tensor]] = {}  # how a linear layer's output was made

    def run(self, model: Callable[[], Tensor]) -> Tensor:
        """The model's output; the gradient that arrives there is turned into relevance: times the output."""
        outputs = super().run(model)
        value = outputs.detach()
        return route(value, lambda gradient: (gradient * value,), outputs)

    def rule(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        kind = kind_of(name, args, kwargs)
        if not args and "input" in kwargs:
            args = (kwargs.pop("input"),)
        if self._blocked(kind, name, args, kwargs):
            return super().rule_of_detached(name, func, args, kwargs)
        value = self._by_kind(kind, name, func, args, kwargs)
        self._note(kind, name, value, args, kwargs)
        return value

    def note_constant(self, name: str, given: list[Tensor], value: Any) -> None:
        super().note_constant(name, given, value)
        # what is made of nothing, or laid out anew, may have as many rows as the input
        if not given or name in _SPREADING or any(v in self.rowed for v in given):
            self.rowed.update(tensors(value))

    def rule_of_detached(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        kind, held = kind_of(name, args, kwargs), self.first_detached(args, kwargs)
        value = without_graph(func, args, kwargs)
        if kind == "softmax":
            # attention weights, held constant
            self.constants.update(tensors(value))
            return value
        role = held.role if kind in ("structure", "sum", "product", "average", "activation") else ""
        role = "gate" if kind == "gate" or name in ("tanh", "erf") else "spread" if name in _SIZES else role
        return self.detach(value, Detached(held.why, held.choice, role))

    def _blocked(self, kind: str, name: str, args: Any, kwargs: Any) -> bool:
        """Whether something held stands beside what is carried, other than as a weight or a choice."""
        held = self.all_detached(args, kwargs)
        if not held:
            return False
        if kind == "product":
            return not all(h.role for h in held)
        return not (kind in ("structure", "maximum") or name == "masked_fill") or not all(
            h.choice for h in held
        )

    def _by_kind(self, kind: str, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if kind in ("structure", "maximum"):
            return func(*args, **kwargs)  # what only moves or chooses numbers: autograd knows the way back
        if kind in _SETTLED and any(map(self.is_attributed, (*args[1:], *kwargs.values()))):
            return self._unruled(name, "its bounds or weights depend on the input", func, args, kwargs)
        if kind in ("activation", "gate"):
            return pass_on(func, *args, **kwargs)
        if kind == "average":
            return proportional(func, args, kwargs)
        if kind in ("linear", "transposed"):
            return self._layer(kind, name, func, args, kwargs)
        if kind == "addmm":
            return self._addmm(func, *args, **kwargs)
        if kind == "batch_norm":
            return self._batch_norm(*args, **kwargs)
        if name == "layer_norm":
            return layer_norm(*args, **kwargs)
        if kind in ("norm", "attention", "recurrent"):
            return self._block(name, args, kwargs)
        if kind == "sum":
            return self._sum(name, *args, **kwargs)
        if kind == "product":
            return self._product(name, func, *args)
        if kind == "matmul":
            return self._matmul(name, func, *args)
        if kind in ("softmax", "compare"):
            value = without_graph(func, args, kwargs)
            self.constants.update(tensors(value) if kind == "softmax" else ())
            return value
        why = kind if kind not in ("elementwise", "spread") else "it has no stated rule"
        return self._unruled(name, why, func, args, kwargs)

    def _unruled(self, name: str, why: str, func: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        """Go on without relevance, and refuse if that reaches the output: it may only go into a softmax."""
        value = without_graph(func, args, kwargs or {})
        role = "spread" if name in ("std", "norm", "vector_norm") else "gate" if name == "erf" else ""
        floats = [v for v in tensors(value) if v.is_floating_point()]
        self.detach(floats, Detached(f"operation '{name}': {why}", role=role))
        return value

    def _block(self, name: str, args: Any, kwargs: Any) -> Any:
        try:
            with self:
                if name in decompose.BLOCKS:
                    return decompose.BLOCKS[name](*args, **kwargs)
                return decompose.recurrent(name, args)
        except NotApplicableError as error:
            raise self.refused(f"operation '{name}'", str(error)) from None

    # --- layers with weights ------------------------------------------------------------------------

    def _layer(self, kind: str, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        named = {**dict(zip(("weight", "bias"), args[1:3], strict=False)), **kwargs}
        w, b = named.pop("weight"), named.pop("bias", None)
        if any(v in self.attributed for v in (w, b)):
            raise self.refused(f"operation '{name}'", "its weights depend on the input")
        linear = dense if name == "linear" else convolution(func, args[3:], named)
        return self._weighted(linear, args[0], w, b, "conv" in name, kind == "transposed")

    def _addmm(self, func: Callable[..., Any], b: Tensor, a: Tensor, w: Tensor, **factors: Any) -> Tensor:
        if factors or w in self.attributed or b in self.attributed or a not in self.attributed:
            raise self.refused("operation 'addmm'", "only a constant matrix and bias have a stated rule")
        return self._weighted(dense, a, w.mT, b, False)

    def _weighted(
        self,
        linear: Linear,
        a: Tensor,
        w: Tensor,
        b: Tensor | None,
        convolution: bool,
        transposed: bool = False,
    ) -> Tensor:
        rule = self.rules.convolution if convolution else self.rules.dense
        if convolution and a in self.raw:
            rule = self.rules.first
        channels = 1 if convolution else -1
        positive = a in self.positive
        layer = Layer.at(linear, a, w, b, channels, positive=positive, transposed=transposed)
        return self._joined(layer, rule, a)

    def _joined(self, layer: Layer, rule: str, a: Tensor) -> Tensor:
        rules = self.rules
        value = route(layer.z, lambda R: (rules.back(rule, layer, R),), a)
        self.layers[value] = (layer, rule, a)
        return value

    def _batch_norm(
        self,
        x: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if training or mean is None or var is None:
            raise self.refused(
                "operation 'batch_norm'", "its statistics are the batch's, which mixes samples"
            )
        layer, rule, a = self.layers.get(x, (None, "", x))
        norm = Affine.of_batch_norm(mean, var, weight, bias, eps)
        if layer is None or not layer.foldable:
            scale, shift = norm.laid(x.dim())
            return proportional(torch.mul, (x, scale), {}, shift)
        z = torch.batch_norm(layer.z, weight, bias, mean, var, False, 0.0, eps, torch.backends.cudnn.enabled)
        return self._joined(layer.normed(z, norm), rule, a)

    # --- where branches meet ------------------------------------------------------------------------

    def _sum(self, name: str, a: Any, b: Any = None, *, other: Any = None, alpha: Any = 1) -> Tensor:
        b = other if b is None else b
        if name == "rsub":
            a, b = b, a
        factor = alpha * (-1 if "sub" in name else 1)
        found = self._layer_before(a, b)
        if found is not None and (not found[0].transposed or (found[0].b is None and found[0].norm is None)):
            return self._joined(found[0].shifted(b, factor), *found[1:])
        found = self._layer_before(b, a)
        if found is not None and factor == 1 and not found[0].transposed:
            return self._joined(found[0].shifted(a, 1), *found[1:])
        return split_sum(a, b, factor)

    def _layer_before(self, value: Any, constant: Any) -> tuple[Layer, str, Tensor] | None:
        """The layer whose output a value is, where a constant beside it has one number for every channel."""
        if not isinstance(value, Tensor) or not isinstance(constant, Tensor):
            return None
        found: tuple[Layer, str, Tensor] | None = self.layers.get(value)
        if (
            found is None
            or constant in self.attributed
            or constant in self.constants
            or constant in self.detached
        ):
            return None
        if constant.dim() > 1 and constant in self.rowed:
            return None
        return found if found[0].has_channels(constant) else None

    def _product(self, name: str, func: Callable[..., Any], a: Any, b: Any, **how: Any) -> Tensor:
        if self.is_attributed(a) and self.is_attributed(b):
            gated = [v in self.gates for v in (a, b)]
            if not any(gated):
                gated = [v in self.bounded for v in (a, b)]
            if "div" not in name and sum(gated) == 1:
                # signal takes all: the gate decides how much passes, the signal what
                gate = (a if gated[0] else b).detach()
                self.rowed.add(gate)
                return self._product(name, func, *((gate, b) if gated[0] else (a, gate)))
            if "div" not in name and not all(gated) and sum(v in self.activated for v in (a, b)) == 1:
                return halves(func, a, b, how)
            return self._unruled(name, _TWO, func, (a, b), how)
        if "div" in name and self.is_attributed(a if name.startswith("r") else b):
            return self._unruled(name, "no rule is stated for a division by an activation", func, (a, b), how)
        for value, factor in ((a, b), (b, a)):
            found = self._layer_before(value, factor)
            if found is not None and not (found[0].transposed or how or name.startswith("r")):
                divides = "div" in name
                return self._joined(found[0].scaled(factor, divides), *found[1:])
        gate, signal = (a, b) if self.is_attributed(a) else (b, a)
        per_unit = signal in self.rowed and signal.dim() > 1 and signal.shape == gate.shape
        if per_unit and gate in self.gates:
            # a signal that is constant, as a first state is, takes all
            product: Tensor = without_graph(func, (a, b), how)
            self.constants.add(product)
            return product
        return proportional(func, (a, b), how, None, 0 if self.is_attributed(a) else 1)

    def _matmul(self, name: str, func: Callable[..., Any], *args: Any) -> Tensor:
        at = [i for i, v in enumerate(args) if self.is_attributed(v)]
        if len(at) != 1:
            # attention scores, perhaps: nothing but a softmax may read them
            return self._unruled(name, _TWO, func, args)
        others = [v for i, v in enumerate(args) if isinstance(v, Tensor) and i != at[0]]
        if all(v in self.constants for v in others):
            # attention is no weight: all its contributions count
            return proportional(func, args, {}, None, at[0])
        if name in ("matmul", "mm") and at == [0] and args[1].dim() == 2:
            return self._weighted(dense, args[0], args[1].mT, None, False)
        why = "only inputs times a matrix of weights, x @ w, have a stated rule"
        return self._unruled(name, why, func, args)

    # --- what is known of an output from what is known of what went in ----------------------------------

    def _note(self, kind: str, name: str, value: Any, args: Any, kwargs: Any) -> None:
        made = [v for v in tensors(value) if v.requires_grad and v not in self.detached]
        if not made:
            return
        given = [v for v in tensors((args, kwargs)) if v.is_floating_point()]
        explained = [v for v in given if v in self.attributed]
        kept = kind in ("structure", "maximum", "average", "sum") and name not in TURNING
        if name in POSITIVE or (kept and all(v in self.positive for v in given)):
            self.positive.update(made)
        rescaled = kind in ("structure", "maximum", "product") or (kind == "sum" and len(explained) == 1)
        if rescaled and all(v in self.raw for v in explained):
            self.raw.update(made)
        passing = kind == "structure" or (kind in ("sum", "product") and len(explained) == 1)
        between = bound(name, args, kwargs, "low") == 0 and bound(name, args, kwargs, "high") is not None
        for marks, new in ((self.gates, kind == "gate"), (self.bounded, name == "relu6" or between)):
            if new or (passing and all(v in marks for v in explained)):
                marks.update(made)
        if kind == "activation":
            self.activated.update(made)


# --- operations without weights to favour ---------------------------------------------------------------


def pass_on(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Activations: all relevance goes to the input as it is."""
    return route(without_graph(func, args, kwargs), lambda R: (R,), args[0])


def proportional(
    func: Callable[..., Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bias: Tensor | None = None,
    at: int = 0,
) -> Tensor:
    """A map that is linear in args[at], without weights to favour: shares of the plain contributions."""
    a = args[at]

    def function(leaf: Tensor) -> Tensor:
        value = func(*args[:at], leaf, *args[at + 1 :], **kwargs)
        return value if bias is None else value + bias

    z, pull = pulled(function, a)
    values = a.detach()
    return route(z, lambda R: (shared(z, [(values, pull)], R),), a)


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
        return tuple((v * scaled).sum_to_size(v.shape) for v in values)

    return route(total, back, *parts)


def halves(func: Callable[..., Tensor], a: Tensor, b: Tensor, how: dict[str, Any]) -> Tensor:
    """A product of which each factor takes half."""
    value, shapes = without_graph(func, (a, b), how), (a.shape, b.shape)
    return route(value, lambda R: tuple((R / 2).sum_to_size(shape) for shape in shapes), a, b)


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
