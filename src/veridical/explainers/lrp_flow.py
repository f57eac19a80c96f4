"""Relevance rules laid over a model while it runs, for models whose graph cannot be traced beforehand.

Hugging Face models choose their way by the shapes and masks they are given, which torch.fx cannot follow.
Here the model runs as it is, and each torch operation that touches the explained input is done by the rule
of its kind. What has no rule is refused by name, as in `lrp_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from veridical.errors import NotApplicableError
from veridical.explainers import lrp_kinds as kinds
from veridical.explainers.lrp_attention import layer_norm, normalized, scaled_dot_product
from veridical.explainers.lrp_maps import Linear, dense, followed
from veridical.explainers.lrp_rules import (
    Layer,
    Rules,
    as_relevance,
    batch_norm,
    fold,
    pass_on,
    proportional,
    scale_and_shift,
    split_sum,
)
from veridical.explainers.lrp_work import Further, Work, multiplications
from veridical.model.predictor import Output


class RelevanceFlow(nn.Module):
    """A model, read by its output rule, whose gradient with respect to its input is LRP's relevance.

    `positive` if no input is below 0.
    """

    def __init__(self, model: nn.Module, output: Output, rules: Rules, positive: bool = False) -> None:
        super().__init__()
        self.model = model
        self._output = output
        self._rules = rules
        self._positive = positive
        self.work = Work()
        self.further = Further()

    def forward(self, x: Tensor, *side: Any, **named: Any) -> Tensor:
        """What the model answers to x, as (rows, outputs)."""
        if not (x.requires_grad and torch.is_grad_enabled()):
            return self._output(self.model(x, *side, **named))
        flow = _Flow(self._rules, x, self._positive)
        self.work = flow.work
        try:
            with flow:
                answer = self._output(self.model(x, *side, **named))
        except Exception:
            # Python's operators make a TypeError of their own of what is raised inside them
            if flow.refusal is not None:
                raise flow.refusal from None
            raise
        flow.refuse_scores([answer], "the model's answer")
        if not answer.requires_grad:
            raise NotApplicableError(
                "no relevance can flow back from the model's answer: it is a softmax, or does not depend on "
                "the input. Let the model answer logits"
            )
        return as_relevance(answer)


class _Flow(TorchFunctionMode):
    """Puts the rule of its kind in the place of every operation on what depends on x."""

    def __init__(self, rules: Rules, x: Tensor, positive: bool) -> None:
        super().__init__()
        self.rules, self.x, self.work = rules, x, Work()
        self.refusal: NotApplicableError | None = None
        self.raw = _Marks([x])  # the input itself, perhaps reshaped or rescaled
        self.positive = _Marks([x] if positive else [])  # known to be at least 0
        self.gates = _Marks()  # answers of a sigmoid: they weigh a signal
        self.scores = _Marks()  # products of two activations: fit for a softmax alone
        self.layers: WeakIdKeyDictionary = WeakIdKeyDictionary()  # how a linear layer's answer was made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # weights are held constant, whatever they require
        args, kwargs = tree_map(self._held, (tuple(args), dict(kwargs or {})))
        given = [v for v in tree_iter((args, kwargs)) if isinstance(v, Tensor)]
        explained = [v for v in given if v.requires_grad]
        name = kinds.plain_name(func)
        if not explained:
            value = func(*args, **kwargs)
            if any(v in self.scores for v in given) and name != "softmax":
                self.scores.add(v for v in tree_iter(value) if isinstance(v, Tensor))
            return value
        self.refuse_scores(given, f"operation '{name}'")
        value = self._by_rule(name, _apart(func), args, kwargs)
        self._note(name, value, given, explained)
        return value

    def _held(self, value: Any) -> Any:
        constant = isinstance(value, Tensor) and value.requires_grad and value.is_leaf and value is not self.x
        return value.detach() if constant else value

    def refuse_scores(self, values: Iterable[Tensor], where: str) -> None:
        """Refuse a product of two activations that did not pass through a softmax."""
        if any(v in self.scores for v in values):
            self.refusal = NotApplicableError(
                f"LRP has no rule for a product of two activations that reaches {where}: only attention "
                "scores on their way to a softmax are held constant"
            )
            raise self.refusal

    def _by_rule(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        kind = kinds.kind_of_call(name, args, kwargs)
        if not args and "input" in kwargs:
            args = (kwargs.pop("input"),)
        a: Any = args[0] if args else None
        if kind == "structure":
            return func(*args, **kwargs)
        if kind in ("activation", "gate"):
            with torch.no_grad():
                # the copy is for functions told to work in place
                value = func(a.detach().clone(), *args[1:], **kwargs)
            return pass_on(value, a)
        if kind == "pool":
            return proportional(lambda x: func(x, *args[1:], **kwargs), a)
        if kind == "linear":
            return self._layer(name, func, args, kwargs)
        if kind == "batch_norm":
            return self._batch_norm(*args, **kwargs)
        if kind == "layer_norm":
            return layer_norm(*args, **kwargs)
        if kind == "length":
            return normalized(*args, **kwargs)
        if kind == "attention":
            return scaled_dot_product(*args, **kwargs)
        if kind == "sum":
            return self._sum(name, *args, **kwargs)
        if kind in ("product", "matmul"):
            return self._product(name, func, *args)
        with torch.no_grad():
            value = func(*args, **kwargs)
        # weights of a softmax are held constant, and so are truth values, shapes and indices
        if kind == "softmax" or not any(
            isinstance(v, Tensor) and v.is_floating_point() for v in tree_iter(value)
        ):
            return value
        raise self._refused(name, "this operation has no stated rule")

    def _layer(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        named = {**dict(zip(("weight", "bias"), args[1:3], strict=False)), **kwargs}
        w, b = named.pop("weight"), named.pop("bias", None)
        if any(v is not None and v.requires_grad for v in (w, b)):
            raise self._refused(name, "its weights depend on the input")

        def as_called(x: Tensor, v: Tensor, c: Tensor | None) -> Tensor:
            answer: Tensor = func(x, v, c, *args[3:], **named)
            return answer

        linear = dense if name == "linear" else followed(as_called)
        return self._weighted(linear, args[0], w, b, "conv" in name)

    def _weighted(self, linear: Linear, a: Tensor, w: Tensor, b: Tensor | None, convolution: bool) -> Tensor:
        rule = self.rules.convolution if convolution else self.rules.dense
        if convolution and a in self.raw:
            rule = self.rules.first
        layer = Layer.at(linear, a, w, b, 1 if convolution else -1, a in self.positive)
        value = self.work.through(layer, rule, self.rules, a)
        self.layers[value] = (linear, a, w, b, convolution)
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
            raise self._refused("batch_norm", "it takes its statistics from the batch, which mixes samples")
        laid = scale_and_shift(mean, var, weight, bias, eps)
        made = self.layers.get(x)
        if made is not None and (made[4] or x.dim() == 2):
            linear, a, w, b, convolution = made
            # the layer runs a second time, which is no part of the model's own work
            size = multiplications(x, w)
            self.work.plain -= size
            self.work.forward += size
            return self._weighted(linear, a, *fold(w, b, *laid), convolution)
        return batch_norm(x, *laid)

    def _sum(self, name: str, a: Any, b: Any = None, *, other: Any = None, alpha: Any = 1) -> Tensor:
        b = other if b is None else b
        if name == "rsub":
            a, b = b, a
        factor = alpha * (-1 if "sub" in name else 1)
        like = a if isinstance(a, Tensor) else b
        parts = [v if isinstance(v, Tensor) else torch.as_tensor(v).to(like) for v in (a, b)]
        if factor != 1:
            moved = parts[1]
            parts[1] = proportional(lambda x: x * factor, moved) if moved.requires_grad else moved * factor
        return split_sum(parts)

    def _product(self, name: str, func: Callable[..., Any], a: Any, b: Any) -> Tensor:
        of_a, of_b = (isinstance(v, Tensor) and v.requires_grad for v in (a, b))
        if of_a and of_b:
            gated = [v in self.gates for v in (a, b)]
            if "div" not in name and sum(gated) == 1 and kinds.kind_of_call(name, (), {}) == "product":
                # signal takes all: the gate decides how much passes, the signal what (Arras et al. 2017)
                return self._product(name, func, *((a.detach(), b) if gated[0] else (a, b.detach())))
            # attention scores, perhaps: nothing but a softmax may read them
            with torch.no_grad():
                value: Tensor = func(a, b)
            self.scores.add([value])
            return value
        if of_a:
            if "matmul" in name and b.dim() == 2:
                return self._weighted(dense, a, b.mT, None, False)
            return proportional(lambda x: func(x, b), a)
        if "div" in name:
            raise self._refused(name, "no rule is stated for a division by an activation")
        return proportional(lambda x: func(a, x), b)

    def _note(self, name: str, value: Any, given: list[Tensor], explained: list[Tensor]) -> None:
        """What is known of an answer from what is known of what went in."""
        made = [v for v in tree_iter(value) if isinstance(v, Tensor) and v.requires_grad]
        kind = kinds.kind_of_call(name, (), {})
        kept = kind in ("structure", "pool", "sum") and name not in kinds.TURNING
        if name in kinds.POSITIVE or (
            kept and all(v in self.positive for v in given if v.is_floating_point())
        ):
            self.positive.add(made)
        if (kind in ("structure", "product") or (kind == "sum" and len(explained) == 1)) and all(
            v in self.raw for v in explained
        ):
            self.raw.add(made)
        if kind == "gate" or (kind == "structure" and all(v in self.gates for v in explained)):
            self.gates.add(made)

    def _refused(self, name: str, why: str) -> NotApplicableError:
        self.refusal = NotApplicableError(f"LRP has no rule for operation '{name}': {why}")
        return self.refusal


def _apart(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function on a copy of its first argument, if it would overwrite it (`add_`, `__imul__`)."""
    name = str(getattr(func, "__name__", ""))
    if not (name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))):
        return func
    return lambda first, *rest, **named: func(first.clone(), *rest, **named)


class _Marks:
    """A set of tensors by identity, which it does not keep alive."""

    def __init__(self, values: Iterable[Tensor] = ()) -> None:
        self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.add(values)

    def add(self, values: Iterable[Tensor]) -> None:
        for value in values:
            self._known[value] = True

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value in self._known
