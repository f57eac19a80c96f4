"""A model as a graph whose backward pass carries relevance: traced by torch.fx, run node by node.

Each node that depends on the explained input is run by the rule of its kind; all others run as they are. A
node without a rule is refused by name, since a wrong rule would give a map that looks right.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg

from veridical.errors import NotApplicableError
from veridical.explainers import lrp_kinds as kinds
from veridical.explainers.lrp_attention import AttentionRules, normalized
from veridical.explainers.lrp_kinds import explained, is_explained
from veridical.explainers.lrp_maps import Linear, convolution, dense, followed
from veridical.explainers.lrp_norms import facts, only_user, scales_and_shifts
from veridical.explainers.lrp_rules import (
    Layer,
    Rules,
    as_relevance,
    batch_norm,
    pass_on,
    proportional,
    scale_and_shift,
    split_sum,
)
from veridical.explainers.lrp_work import Further, Work
from veridical.model.adapters import ArrayModel, FunctionModel
from veridical.model.embeddings import EmbeddingView


class RelevanceGraph(nn.Module):
    """The user's model, whose gradient with respect to its input is LRP's relevance.

    The value it computes is the model's own, under the weights that lie in it. `positive` if no input is
    below 0.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph, rules: Rules, positive: bool = False) -> None:
        super().__init__()
        self.module, self._embedding = unwrapped(model)
        self._graph = graph
        self._rules = rules
        self._positive = positive
        self.work = Work()
        self.further = Further()

    def forward(self, x: Tensor, *side: Any, **named: Any) -> Any:
        """What the model answers to x."""
        if self._embedding is not None:
            tokens, side = (side[0], side[1:]) if side else (named.pop("token_ids"), ())
            given = (tokens, *side)
        else:
            given = (x, *side)
        bound = inspect.signature(self.module.forward).bind(*given, **named).arguments
        run = _Run(self.module, self._rules, x, self._embedding, self._positive)
        self.work = run.work
        return run.through(self._graph, bound)


def unwrapped(model: nn.Module) -> tuple[nn.Module, nn.Module | None]:
    """The model itself, and the layer whose answer is the explained input."""
    if not isinstance(model, EmbeddingView):
        return model, None
    return model.module, model.module.get_submodule(model.layer)


def traced(module: nn.Module, given: int, named: set[str]) -> fx.Graph | None:
    """The graph of a module called with `given` inputs by position and others by name, if torch.fx can."""
    if isinstance(module, torch.jit.ScriptModule | ArrayModel | FunctionModel):
        raise NotApplicableError(
            "LRP reads the layers of a torch module, and this model is compiled or a plain function"
        )
    parameters = list(inspect.signature(module.forward).parameters.values())
    constants = {
        p.name: p.default
        for i, p in enumerate(parameters)
        if i >= given and p.name not in named and p.default is not p.empty
    }
    try:
        return fx.Tracer().trace(module, constants)
    except Exception:  # tracing runs the user's code with stand-ins: anything may go wrong there
        return None


class _Run:
    """One forward pass through the graph."""

    def __init__(
        self, module: nn.Module, rules: Rules, x: Tensor, embedding: nn.Module | None, positive: bool
    ) -> None:
        self.module, self.rules, self.x, self.embedding = module, rules, x, embedding
        self.work, self.above_zero = Work(), positive
        self.values: dict[fx.Node, Any] = {}
        self.positive: set[fx.Node] = set()  # known to be at least 0
        self.raw: set[fx.Node] = set()  # the input itself, perhaps reshaped or rescaled
        self.gates: set[fx.Node] = set()  # answers of a sigmoid: they weigh a signal
        self.norms: dict[fx.Node, tuple[Tensor, Tensor]] = {}  # by what they multiply, and what they add
        self.folded: set[fx.Node] = set()  # batch norms that their layer has taken over
        self.carrying: set[fx.Node] = set()  # relevance reaches it: not only through a softmax

    @property
    def attention(self) -> AttentionRules:
        """Made when asked for: one that is kept would hold this run, and its activations, in a cycle."""
        return AttentionRules(self.dense, self.work)

    def through(self, graph: fx.Graph, bound: dict[str, Any]) -> Any:
        first = True
        self.carrying = self._reached(graph)
        self.norms = self._norms(graph)
        for node in graph.nodes:
            if node.op == "placeholder":
                default = node.args[0] if node.args else None
                value = bound.get(str(node.target), default)
                if first and self.embedding is None:
                    value = self.x
                    self.raw.add(node)
                    if self.above_zero:
                        self.positive.add(node)
                first = False
                self.values[node] = value
            elif node.op == "get_attr":
                value = self.module
                for part in str(node.target).split("."):
                    value = getattr(value, part)
                self.values[node] = value.detach() if isinstance(value, Tensor) else value
            elif node.op == "output":
                return self._answer(node)
            elif node.users:
                # a result that nobody uses is an assertion, or was changed in place, which is not followed
                self.values[node] = self._call(node)
        raise NotApplicableError("the traced model has no output")

    def _reached(self, graph: fx.Graph) -> set[fx.Node]:
        """Nodes that the output depends on otherwise than through the weights a softmax makes."""
        waiting = [node for node in graph.nodes if node.op == "output"]
        facts = waiting[0].meta
        if "lrp reached" not in facts:
            found: set[fx.Node] = set()
            while waiting:
                node = waiting.pop()
                if node in found:
                    continue
                found.add(node)
                if self._kind_of(node) != "softmax":
                    waiting += node.all_input_nodes
            facts["lrp reached"] = found
        reached: set[fx.Node] = facts["lrp reached"]
        return reached

    def _kind_of(self, node: fx.Node) -> str:
        """The rule of a node: looked up once a graph, since a small model runs faster than the look."""
        if "lrp kind" not in node.meta:
            node.meta["lrp kind"] = kinds.kind_of(node, self._module_of(node))
        kind: str = node.meta["lrp kind"]
        return kind

    def _module_of(self, node: fx.Node) -> Any:
        if node.op != "call_module":
            return None
        if "lrp module" not in node.meta:
            node.meta["lrp module"] = self.module.get_submodule(str(node.target))
        return node.meta["lrp module"]

    def _answer(self, node: fx.Node) -> Any:
        answer: Any = map_arg(node.args[0], lambda n: self.values[n])
        if self.x.requires_grad and not explained(answer):
            raise NotApplicableError(
                "no relevance can flow back from the model's answer: it is a softmax, or does not depend on "
                "the input. Let the model answer logits"
            )
        return map_aggregate(answer, lambda v: as_relevance(v) if is_explained(v) else v)  # type: ignore[arg-type]

    def _call(self, node: fx.Node) -> Any:
        args: Any = map_arg(node.args, lambda n: self.values[n])
        kwargs: Any = map_arg(node.kwargs, lambda n: self.values[n])
        module = self._module_of(node)
        if module is not None and module is self.embedding:
            self.raw.add(node)
            return self.x
        function = self._function(node, module)
        if node not in self.carrying or not any(explained(self.values[n]) for n in node.all_input_nodes):
            with torch.no_grad():
                return function(*args, **kwargs)
        if node in self.folded:
            return args[0]
        if module is not None and module._forward_pre_hooks:
            raise self._refused(node, "its weight is made by a hook before each call")
        value = self._by_rule(node, module, function, list(args), dict(kwargs))
        self._note(node, module)
        return value

    def _function(self, node: fx.Node, module: nn.Module | None) -> Callable[..., Any]:
        if module is not None:
            return module
        if node.op == "call_method":
            return partial(_method, str(node.target))
        assert callable(node.target)
        return node.target

    def _by_rule(
        self, node: fx.Node, module: nn.Module | None, function: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        kind = self._kind_of(node)
        if not args and "input" in kwargs:
            args = [kwargs.pop("input")]
        a: Any = args[0] if args else None
        if kind == "structure":
            return function(*args, **kwargs)
        if kind in ("activation", "gate"):
            given = a.detach().clone() if kinds.may_work_in_place(node, module) else a.detach()
            with torch.no_grad():
                value = function(given, *args[1:], **kwargs)
            return pass_on(value, a)
        if kind == "pool":
            return proportional(lambda x: function(x, *args[1:], **kwargs), a)
        if kind == "sum":
            return self._sum(node, args, kwargs)
        if kind == "product":
            return self._product(node, args)
        if kind == "matmul":
            return self._matmul(node, args)
        if kind == "attention":
            return self.attention(node, module, args, kwargs)
        if kind == "layer_norm":
            return self.attention.norm(module, args, kwargs)
        if kind == "length":
            return normalized(*args, **kwargs)
        if kind == "batch_norm":
            return batch_norm(a, *scale_and_shift(*facts(module)))
        if kind == "linear":
            return self._layer(node, module, function, args, kwargs)
        raise self._refused(node, kind)

    # --- layers with weights ------------------------------------------------------------------------

    def _layer(
        self, node: fx.Node, module: Any, function: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Tensor:
        a, norm = args[0], None
        linear: Linear = dense
        if module is None:
            given = {**dict(zip(("weight", "bias"), args[1:3], strict=False)), **kwargs}
            w, b = given.pop("weight"), given.pop("bias", None)
            if explained((w, b)):
                raise self._refused(node, "its weights depend on the input")
            rest = args[3:]

            def as_called(x: Tensor, v: Tensor, c: Tensor | None) -> Tensor:
                answer: Tensor = function(x, v, c, *rest, **given)
                return answer

            linear = followed(as_called)
            convolves = "conv" in kinds.name_of(node)
        else:
            w, b = module.weight.detach(), None if module.bias is None else module.bias.detach()
            convolves = not isinstance(module, nn.Linear)
            linear = convolution(module) if convolves else dense
            norm = self._norm_after(node, a, convolves)
        rule = self.rules.convolution if convolves else self.rules.dense
        positive = bool(node.all_input_nodes) and node.all_input_nodes[0] in self.positive
        if convolves and node.all_input_nodes[0] in self.raw:
            rule = self.rules.first
        return self.weighted(rule, linear, a, w, b, 1 if convolves else -1, positive, norm)

    def weighted(
        self,
        rule: str,
        linear: Linear,
        a: Tensor,
        w: Tensor,
        b: Tensor | None,
        channels: int = -1,
        positive: bool = False,
        norm: Any = None,
    ) -> Tensor:
        """A linear layer under a rule, its inputs' channels along the axis `channels`."""
        layer = Layer.at(linear, a, w, b, channels, positive, norm)
        return self.work.through(layer, rule, self.rules, a)

    def dense(self, a: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        """A linear layer inside a block that is handled whole."""
        return self.weighted(self.rules.dense, dense, a, w.detach(), None if b is None else b.detach())

    def _norm_after(self, node: fx.Node, a: Tensor, convolves: bool) -> tuple[Tensor, Tensor] | None:
        """Scale and shift of the batch norm that can be folded into this layer's weights."""
        norm = only_user(node)
        if norm is None or norm not in self.norms or not (convolves or a.dim() == 2):
            return None
        self.folded.add(norm)
        return self.norms[norm]

    def _norms(self, graph: fx.Graph) -> dict[fx.Node, tuple[Tensor, Tensor]]:
        """Scale and shift of every batch norm behind a layer with weights."""
        behind = {
            n: only_user(n) for n in graph.nodes if n.op == "call_module" and self._kind_of(n) == "linear"
        }
        found = {user: self._module_of(user) for user in behind.values() if user is not None}
        return scales_and_shifts(
            {
                node: norm
                for node, norm in found.items()
                if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_mean is not None
            }
        )

    # --- where branches meet ------------------------------------------------------------------------

    def _sum(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Tensor:
        a, b = args[0], args[1] if len(args) > 1 else kwargs["other"]
        factor = kwargs.get("alpha", 1) * (-1 if "sub" in kinds.name_of(node) else 1)
        if "rsub" in kinds.name_of(node):
            a, b, factor = b, a, 1
            a, b = proportional(torch.neg, b) if is_explained(b) else -b, a
        like = a if isinstance(a, Tensor) else b
        parts = [v if isinstance(v, Tensor) else torch.as_tensor(v).to(like) for v in (a, b)]
        if factor != 1:
            moved = parts[1]
            parts[1] = proportional(lambda x: x * factor, moved) if is_explained(moved) else moved * factor
        return split_sum(parts)

    def _product(self, node: fx.Node, args: list[Any]) -> Tensor:
        a, b = args[0], args[1]
        divides = "div" in kinds.name_of(node)
        if is_explained(a) and is_explained(b):
            # signal takes all: the gate decides how much passes, the signal what (Arras et al. 2017)
            inputs = [n for n in node.args if isinstance(n, fx.Node)]
            gated = [n in self.gates for n in inputs]
            if divides or sum(gated) != 1:
                raise self._refused(node, "no rule is stated for a product of two activations")
            a, b = (a.detach(), b) if gated[0] else (a, b.detach())
        if is_explained(a):
            return proportional(lambda x: x / b if divides else x * b, a)
        if divides:
            raise self._refused(node, "no rule is stated for a division by an activation")
        return proportional(lambda x: a * x, b)

    def _matmul(self, node: fx.Node, args: list[Any]) -> Tensor:
        a, b = args[0], args[1]
        if is_explained(a) and is_explained(b):
            raise self._refused(node, "no rule is stated for a product of two activations")
        if is_explained(b):
            return proportional(lambda x: a @ x, b)
        if b.dim() == 2:
            return self.weighted(self.rules.dense, dense, a, b.mT, None)
        return proportional(lambda x: x @ b, a)

    # --- what is known of a node's values -------------------------------------------------------------

    def _note(self, node: fx.Node, module: nn.Module | None) -> None:
        kind = self._kind_of(node)
        sources = [n for n in node.all_input_nodes if explained(self.values[n])]
        if kinds.is_positive(node, module) or (
            kind in ("structure", "pool", "sum")
            and not kinds.may_turn_negative(node)
            and len(sources) == len(node.all_input_nodes)
            and all(n in self.positive for n in sources)
        ):
            self.positive.add(node)
        rescales = kind in ("structure", "product") or (kind == "sum" and len(sources) == 1)
        if rescales and all(n in self.raw for n in sources):
            self.raw.add(node)
        if kind == "gate" or (kind == "structure" and all(n in self.gates for n in sources)):
            self.gates.add(node)

    def _refused(self, node: fx.Node, why: str) -> NotApplicableError:
        what = f"layer '{node.target}'" if node.op == "call_module" else f"operation '{kinds.name_of(node)}'"
        if node.op == "call_module":
            what += f" ({type(self.module.get_submodule(str(node.target))).__name__})"
        return NotApplicableError(f"LRP has no rule for {what} at node '{node.name}': {why}")


def _method(name: str, owner: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)
