"""A look at a model's graph before its layers are hooked: what no layer made, no hook can change.

Methods that replace the backward rule of a non-linearity see only those that are layers. On `F.relu` they
would fall back to the plain gradient without a word, and a layer that runs twice keeps the inputs of one
run only. So one row is sent through the model first; the operations its gradient passes are compared with
those its layers made, and the method refuses where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from veridical.model.predictor import call, take_side
from veridical.values.task import Task

RECTIFIERS = (nn.ReLU, nn.ReLU6)
ELEMENTWISE = (
    *RECTIFIERS,
    nn.Hardtanh,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.LeakyReLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softplus,
    nn.GELU,
    nn.SiLU,
    nn.Hardswish,
    nn.Hardsigmoid,
)
POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)

_RECTIFYING = frozenset(
    {"Relu", "Hardtanh", "ClampMin", "Clamp", "Threshold", "Maximum", "Minimum", "Where", "LeakyRelu"}
)
# these pass differences on exactly: what comes out for x - x0 is what came out for x less that for x0
_SUMS = frozenset({"Add", "Sub", "Rsub", "Neg", "Sum", "Mean", "Addmm", "Addmv", "Addbmm", "Baddbmm"})
_FILTERS = frozenset(
    f"{name}{axes}"
    for name in ("AvgPool", "AdaptiveAvgPool", "MkldnnAdaptiveAvgPool", "UpsampleNearest", "ReflectionPad")
    for axes in ("1D", "2D", "3D")
) | {"Convolution", "MkldnnConvolution", "CudnnConvolution", "UpsampleLinear1D", "UpsampleBilinear2D"}
_SHAPES = frozenset({"View", "UnsafeView", "ReshapeAlias", "Alias", "AsStrided", "T", "Transpose", "Permute"})
_PLACES = frozenset(
    {"Squeeze", "Unsqueeze", "Expand", "Repeat", "Cat", "Stack", "Slice", "Select", "Index", "IndexSelect"}
    | {"Gather", "Split", "SplitWithSizes", "Unbind", "Flip", "Roll", "Unfold", "ConstantPadNd", "MaskedFill"}
    | {"Clone", "ToCopy", "Copy", "CopySlices", "AccumulateGrad"}
)
_LINEAR = _SUMS | _FILTERS | _SHAPES | _PLACES
_PRODUCTS = frozenset(
    {"Mul", "Mm", "Bmm", "Mv", "Dot", "Div", "Linear", "Addmm", "Addbmm", "Baddbmm", "Addmv"}
)
_OURS = "_CountBackwardBackward"


@dataclass
class Trace:
    """What one row showed: how often each layer ran, and which operations no known layer made."""

    runs: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, type[nn.Module]] = field(default_factory=dict)
    free: list[tuple[str, str]] = field(default_factory=list)
    """(operation, where it stands) in the order from output to input."""
    nonlinear: list[tuple[str, str]] = field(default_factory=list)
    """Those of `free` that are not linear in the input."""
    opaque: list[tuple[str, str]] = field(default_factory=list)
    tangled: list[str] = field(default_factory=list)
    """Activations that are not one operation in the graph: those in place on a view of something else."""
    connected: bool = True

    def ran(self, kinds: tuple[type[nn.Module], ...]) -> dict[str, int]:
        """The runs of the layers of these kinds."""
        return {name: count for name, count in self.runs.items() if issubclass(self.kinds[name], kinds)}


def trace(task: Task) -> Trace:
    """Send one row of the task through its unperturbed model and look; done once, and not counted."""
    found: Trace = task.reference.cached(
        "graph", lambda: task.uncounted(lambda: _trace(task.reference.at_embeddings()))
    )
    return found


def why_not_rectifiers(task: Task) -> str | None:
    """Why the rule of rectifiers cannot be replaced everywhere, or None if it can."""
    reason = _closed(task) or _reused(trace(task), RECTIFIERS)
    if reason is not None:
        return reason
    seen = trace(task)
    for operation, place in seen.free:
        if operation in _RECTIFYING:
            return (
                f"the model applies '{operation.lower()}' {place} as a function, which no hook can change; "
                "write it as a layer of its own, nn.ReLU(), in the module's __init__"
            )
    for operation, place in seen.opaque:
        return f"the model runs its own autograd function '{operation}' {place}, whose inside is not known"
    if not seen.ran(RECTIFIERS):
        return "the model has no nn.ReLU or nn.ReLU6 layer, so the map would be the plain gradient"
    return None


def why_not_rescale(task: Task) -> str | None:
    """Why differences cannot be passed back layer by layer (DeepLIFT), or None if they can."""
    reason = _closed(task) or _reused(trace(task), (*ELEMENTWISE, *POOLS))
    if reason is not None:
        return reason
    seen = trace(task)
    for operation, place in [*seen.opaque, *seen.nonlinear]:
        return (
            f"the model applies '{operation.lower()}' {place}, which is neither linear nor a layer that the "
            "rescale rule is defined for; write activations and max-pooling as layers of their own "
            "(nn.ReLU(), nn.MaxPool2d()) and explain logits, not probabilities"
        )
    return None


@contextmanager
def hooked(
    model: nn.Module,
    kinds: tuple[type[nn.Module], ...],
    after: Callable[[nn.Module, Any, Any], Any],
    before: Callable[[nn.Module, Any], None] | None = None,
    looked_at_before: Callable[[nn.Module], bool] = lambda layer: True,
) -> Iterator[None]:
    """Hook every layer of these kinds while the body runs; the hooks go also when it raises."""
    handles: list[Any] = []
    try:
        for layer in _layers(model):
            if not isinstance(layer, kinds):
                continue
            handles.append(layer.register_forward_hook(after))
            if before is not None and looked_at_before(layer):
                handles.append(layer.register_forward_pre_hook(before))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layers(model: nn.Module) -> list[nn.Module]:
    """Every module of a model once; without their names, which cost more than to hook the layers."""
    found, ahead = {model: None}, [model]
    while ahead:
        children = ahead.pop()._modules.values()
        new = {child: None for child in children if child is not None and child not in found}
        found |= new
        ahead += new
    return list(found)


def _closed(task: Task) -> str | None:
    layers = _layers(task.predictor.model)
    if any(isinstance(a, torch.jit.ScriptModule) or type(a).__name__ == "OptimizedModule" for a in layers):
        return "the model is compiled or scripted, so its layers cannot be hooked; give the plain module"
    if not trace(task).connected:
        return "the model's outputs do not depend on its inputs through torch operations"
    return None


def _reused(seen: Trace, kinds: tuple[type[nn.Module], ...]) -> str | None:
    """Why the runs of these layers cannot be hooked one by one, or None if they can."""
    for name in seen.tangled:
        if issubclass(seen.kinds[name], kinds):
            return f"layer '{name}' works in place on a view of another tensor; give it inplace=False"
    for name, count in seen.ran(kinds).items():
        if count > 1:
            kind = seen.kinds[name].__name__
            return (
                f"layer '{name}' ({kind}) runs {count} times in one pass, and a hook cannot tell its runs "
                f"apart; give each place a layer of its own, nn.{kind}()"
            )
    return None


def _trace(task: Task) -> Trace:
    seen = Trace()
    made: dict[Node, str] = {}
    own: set[Node] = set()
    entered: dict[nn.Module, Node | None] = {}
    model = task.predictor.model
    names = {layer: name for name, layer in model.named_modules()}

    def before(layer: nn.Module, inputs: Any) -> None:
        entered[layer] = inputs[0].grad_fn if inputs and isinstance(inputs[0], Tensor) else None

    def after(layer: nn.Module, _inputs: Any, output: Any) -> None:
        name = names[layer]
        seen.runs[name] = seen.runs.get(name, 0) + 1
        seen.kinds[name] = type(layer)
        if isinstance(output, Tensor) and output.grad_fn is not None:
            made[output.grad_fn] = name
            if isinstance(layer, ELEMENTWISE) and not _single(output.grad_fn, entered[layer]):
                seen.tangled.append(name)
            elif isinstance(layer, (*ELEMENTWISE, *POOLS)):
                own.update(_between(output.grad_fn, entered[layer]))

    leaves = [layer for layer in model.modules() if not list(layer.children())]
    with task.session(grad=True) as view:
        handles = [leaf.register_forward_hook(after) for leaf in leaves]
        handles += [leaf.register_forward_pre_hook(before) for leaf in leaves]
        try:
            x = task.inputs[:1].detach().clone().requires_grad_(True)
            outputs = call(view, x, take_side(task.side, slice(0, 1)))
        finally:
            for handle in handles:
                handle.remove()
    if outputs.grad_fn is None:
        seen.connected = False
    else:
        _walk(outputs.grad_fn, x, seen, made, own)
    return seen


def _walk(root: Node, x: Tensor, seen: Trace, made: dict[Node, str], own: set[Node]) -> None:
    """Sort the operations between output and input into those layers made and the free ones."""
    order = _reachable(root)
    depends: set[Node] = set()
    for node in reversed(order):
        if getattr(node, "variable", None) is x or any(n in depends for n, _ in node.next_functions):
            depends.add(node)
    for node in order:
        if node not in depends or node in own or node.name() == _OURS:
            continue
        place = _place(node, made, depends)
        operation = _operation(node)
        if isinstance(node, BackwardCFunction):
            seen.opaque.append((operation, place))
            continue
        seen.free.append((operation, place))
        if not _linear(node, operation, depends):
            seen.nonlinear.append((operation, place))


def _linear(node: Node, operation: str, depends: set[Node]) -> bool:
    from_input = [n in depends for n, _ in node.next_functions]
    if operation in _PRODUCTS:
        # a product of two things that both come from the input is not linear, nor is a division by one
        factors = from_input[-2:]
        return sum(factors) <= 1 and not (operation == "Div" and len(factors) > 1 and factors[-1])
    if operation.endswith("BatchNorm"):
        # with its running statistics it is an affine map; with those of the batch it is not
        return getattr(node, "_saved_training", False) is False
    return operation in _LINEAR


def _reachable(root: Node) -> list[Node]:
    """Every node below the root, each before those it leads to."""
    order: list[Node] = []
    visited: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in visited:
            visited.add(node)
            stack.append((node, True))
            stack.extend((n, False) for n, _ in node.next_functions if n is not None)
    return order[::-1]


def _single(node: Node, entered: Node | None) -> bool:
    """Whether a layer is this one operation on what it was given."""
    sources = [source for source, _ in node.next_functions if source is not None]
    return len(sources) == 1 and (
        sources[0] is entered or (entered is None and hasattr(sources[0], "variable"))
    )


def _between(last: Node, first: Node | None) -> set[Node]:
    """The operations a layer made: from its output back to, and without, what its input came from."""
    inside: set[Node] = set()
    stack = [last]
    while stack:
        node = stack.pop()
        if node is first or node in inside or hasattr(node, "variable"):
            continue
        inside.add(node)
        stack.extend(n for n, _ in node.next_functions if n is not None)
    return inside


def _place(node: Node, made: dict[Node, str], depends: set[Node]) -> str:
    """Where an operation stands, told by the nearest layer before it."""
    if node in made:
        return f"in layer '{made[node]}'"
    queue = [node]
    visited = {node}
    for current in queue:
        for below, _ in current.next_functions:
            if below in depends and below not in visited:
                if below in made:
                    return f"after layer '{made[below]}'"
                visited.add(below)
                queue.append(below)
    return "on the input"


def _operation(node: Node) -> str:
    """'ReluBackward0' -> 'Relu'."""
    name = node.name().rsplit("::", 1)[-1].rstrip("0123456789")
    return name.removesuffix("Backwards").removesuffix("Backward").removeprefix("Native").lstrip("_")
