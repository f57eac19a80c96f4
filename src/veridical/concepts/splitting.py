"""Split a model at its head: the embeddings before, an affine map of them after."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from veridical.concepts.embeddings import Embeddings, Head, Kind
from veridical.core.settings import checked
from veridical.errors import InputError, NotApplicableError, unknown_name
from veridical.functional.devices import on_host
from veridical.models.inner_units import Site
from veridical.models.predictor import Side, call, take_side
from veridical.values.task import Task

End = Literal["input", "output", "product"]
"""What is read: a layer's input, its output, or what a matrix product reads that no layer owns."""

_CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}
_MATRIX = {F.linear, torch.mm, torch.addmm, torch.bmm, torch.matmul, torch.einsum}
_PRODUCTS = {*_CONVOLUTIONS, *_MATRIX, Tensor.mm, Tensor.bmm, Tensor.matmul, Tensor.__matmul__}
"""Functions of torch that an affine head is made of."""


@dataclass(frozen=True, eq=False)
class Call:
    """What one layer read and gave; `read` is the very tensor, to be known again."""

    module: nn.Module
    read: Tensor
    input: Tensor
    output: Tensor


@contextmanager
def at_layer(
    module: nn.Module, layer: str, end: End, change: Callable[[Tensor], Tensor | None]
) -> Iterator[None]:
    """While this is open, what a layer reads or gives passes through `change`; None leaves it."""
    handles = Site(layer, 0, 1, reads_input=end == "input", whole=True).hooked(module, change)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Products(TorchFunctionMode):
    """While this is on, what every matrix product reads of the samples passes through `change`.

    Whoever calls for the product: a layer, `F.linear`, `@` or `torch.einsum`. `change` is also given whether
    dimensions come last.
    """

    def __init__(self, rows: int, change: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.rows, self.change = rows, change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS:
            for i, given in enumerate(args):
                if isinstance(given, Tensor) and given.dim() > 1 and len(given) == self.rows:
                    args = (*args[:i], self.change(given, func not in _CONVOLUTIONS), *args[i + 1 :])
                    break
        return func(*args, **(kwargs or {}))


def trace(
    task: Task, change: Callable[[Tensor, bool], Tensor] | None = None
) -> tuple[Tensor, dict[str, Call]]:
    """The outputs on a few rows, with their graph, and layers in the order in which they finish.

    With `change`, what products read passes through it.
    """
    calls: dict[str, Call] = {}
    few = slice(0, min(4, task.predictor.rows))

    def note(name: str, module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        found = output[0] if isinstance(output, tuple) else output
        if given and isinstance(given[0], Tensor) and isinstance(found, Tensor):
            calls.pop(name, None)
            calls[name] = Call(module, given[0], given[0].detach().clone(), found.detach().clone())

    hooks = [
        module.register_forward_hook(partial(note, name))
        for name, module in task.predictor.model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    rows, side = task.inputs[few], take_side(task.side, few)
    watched = nullcontext() if change is None else _Products(len(rows), change)
    try:
        with task.session(grad=True) as model, watched:
            return task.uncounted(lambda: call(model, rows, side)), calls
    finally:
        for hook in hooks:
            hook.remove()


def as_positions(found: Tensor, channels_last: bool) -> Tensor:
    """A layer's output as vectors (N, J, D), one at each position; J = 1 where it is one vector."""
    if found.dim() == 2:
        return found[:, None]
    return found.flatten(1, -2) if channels_last else found.flatten(2).transpose(1, 2)


class Tap(nn.Module):
    """The model and, beside its outputs, what one layer read or gave, or the last product but some read."""

    def __init__(self, module: nn.Module, layer: str, end: End, product: int = 1) -> None:
        super().__init__()
        self.module = module
        self.layer, self.end, self.product = layer, end, product

    def forward(self, *args: Any, **named: Any) -> tuple[Any, Tensor]:
        seen: deque[Tensor] = deque(maxlen=self.product)

        def keep(found: Tensor, _last: bool = True) -> Tensor:
            seen.append(found.clone())  # a copy: a layer that works in place would write over it
            return found

        layer = partial(at_layer, self.module, self.layer, self.end, keep)
        with _Products(len(args[0]), keep) if self.end == "product" else layer():
            output = self.module(*args, **named)
        return output, seen[0]


Read = Literal["vector", "mean", "first", "last", "token", "each"]
"""What the head sees of a layer with positions or tokens: the mean over them, one of them, or all in a row.

"token" is the one that the model's own output comes from, which may be another one in every sample."""

_ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 2**-8, torch.bfloat16: 2**-6}
"""How far, as a share of `|F| |h| + |b|`, products of a precision may be from the exact ones."""


@dataclass(frozen=True, eq=False)
class Split:
    """A task's model as `f(g(x))`: `head` is f, and `collect` runs g.

    `layer` and `end` say where embeddings are read, and `read` what becomes one vector of a sample;
    `map_layer` names the layer whose output, averaged over positions, is the embedding (None: no layer's is).
    """

    task: Task
    head: Head
    layer: str
    end: End
    map_layer: str | None = None
    read: Read = "vector"
    channels_last: bool = True
    product: int = 1
    map_channels_last: bool = False
    _collected: dict[tuple[str, bool], Embeddings] = field(default_factory=dict, init=False, repr=False)

    @property
    def positions(self) -> bool:
        """Whether there is an embedding at every position or token."""
        return self.map_layer is not None or self.read not in ("vector", "each")

    def collect(
        self,
        inputs: Tensor,
        side: Side = (),
        labels: Tensor | None = None,
        ids: Tensor | None = None,
        spatial: bool = False,
    ) -> Embeddings:
        """Embeddings and outputs of any rows, in the task's chunks; each row is counted once.

        Where the head is linear, every row is checked.
        """
        if spatial and not self.positions:
            raise NotApplicableError(
                f"no layer before '{self.layer}' gives a map whose mean is the embedding: it has no positions"
            )
        at = self
        if spatial and self.map_layer is not None:
            at = replace(
                self, layer=self.map_layer, end="output", read="mean", channels_last=self.map_channels_last
            )
        apart = spatial and at.read != "mean"
        predictor, own = self.task.predictor, self.task.predictor.output
        grid: list[tuple[int, ...]] = []

        def joined(found: tuple[Any, Tensor]) -> Tensor:
            """Outputs and embeddings of a row side by side: the predictor carries one tensor."""
            outputs = own(found[0])
            each = as_positions(found[1], at.channels_last).to(outputs)
            if found[1].dim() == 4 and not at.channels_last:
                grid[:] = [tuple(found[1].shape[2:])]
            parts = [seen_of(each, at, outputs)] if apart or not spatial else []
            return torch.cat([outputs, *parts, *([each.flatten(1)] if spatial else [])], 1)

        tapped = predictor.with_model(Tap(predictor.model, at.layer, at.end, at.product), joined)
        outputs, flat = tapped.outputs(inputs, side).tensor_split([self.task.n_outputs], 1)
        ids = torch.arange(len(inputs), device=inputs.device) if ids is None else ids
        values, seen = flat, None
        if spatial:
            values = flat.reshape(len(flat), -1, self.head.dimension)
        if apart:
            values, seen = values[:, 1:], values[:, 0]
        # a layer with one vector per sample has one position
        kind: Kind = "positions" if spatial or not self.positions else "pooled"
        attention = side.get("attention_mask") if spatial and isinstance(side, dict) else None
        words = attention.bool() if attention is not None and attention.shape == values.shape[:2] else None
        shape: Any = grid[0] if spatial and grid else None
        made = Embeddings(values, outputs, ids, labels, kind, seen, shape, words)
        self._check_linear(made)
        return made

    def _check_linear(self, found: Embeddings) -> None:
        if not self.head.exact:
            return
        precision = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(
            self.task.predictor.plan.autocast or "", found.values.dtype
        )
        share = _ROUNDING.get(precision, 2e-5)
        if not on_host(found.values) and precision == torch.float32:
            share = 2**-9  # products may be in TF32
        for at in range(0, len(found), 4096):
            h, y = found.pooled[at : at + 4096].double(), found.outputs[at : at + 4096].double()
            bound = share * (h.abs() @ self.head.weight.abs().T + self.head.bias.abs()) + 1e-12
            wrong = ((self.head.outputs(h) - y).abs() > bound).any(-1)
            if bool(wrong.any()):
                first = at + int(wrong.nonzero()[0])
                raise _not_linear(
                    f"on row {first} the model's outputs are not an affine function of what '{self.layer}' "
                    f"reads (largest difference {float((self.head.outputs(h) - y).abs().max()):.3g})"
                )

    def test(self, spatial: bool = False) -> Embeddings:
        """The embeddings of the task's inputs, on which explanations are judged; collected once."""
        if ("test", spatial) not in self._collected:
            task = self.task
            found = self.collect(task.inputs, task.side, task.labels, task.ids, spatial)
            self._collected["test", spatial] = found
        return self._collected["test", spatial]

    def train(self, spatial: bool = False) -> Embeddings:
        """The embeddings of the task's train rows, on which concepts are fitted; collected once."""
        task = self.task
        if task.train is None:
            raise InputError("this task has none of the train rows that concepts need: Task(..., train=...)")
        if ("train", spatial) not in self._collected:
            found = self.collect(task.train, task.train_side, task.train_labels, None, spatial)
            self._collected["train", spatial] = found
        return self._collected["train", spatial]


def _not_linear(why: str) -> NotApplicableError:
    return NotApplicableError(
        f"the head is not linear: {why}. Give logits, not probabilities (output=...), or use "
        "split(task, layer, first_order=True), which expands the head and reports the error of doing so"
    )


@checked
def split(task: Task, layer: str | None = None, first_order: bool = False, read: Read | None = None) -> Split:
    """Split a task's model before its head: the last matrix product whose input gives all outputs affinely.

    An `nn.Linear` (also several that read the same embedding, summed, scaled or side by side), a 1x1
    convolution before average pooling, a product of functions (`F.linear`, `@`, `einsum`) and a layer over
    tokens of which one is the output are such heads. The derivative of the outputs must be the same on some
    rows; it is the head, and all rows that are collected are checked against it.

    Parameters
    ----------
    task
        A task with a torch model.
    layer
        The linear layer that reads the embedding (default: found by itself), or with `first_order` any layer,
        whose output is the embedding.
    first_order
        Expand a head that is not linear at the mean train embedding: `F = J(h0)`, `b = y(h0) - J(h0) h0`.
    read
        What becomes one vector of a sample where an expanded layer has positions or tokens: "mean", "first",
        "last", or "each": all in a row.

    Returns
    -------
    Split
        The head, and what collects embeddings: `parts.train()`, `parts.test()`.

    Raises
    ------
    NotApplicableError
        The head is not linear, or the model is no torch model.

    Examples
    --------
    >>> import veridical as vd
    >>> vd.concepts.split(vd.tasks.load("digits")).head.n_outputs
    10
    """
    if not task.predictor.differentiable:
        raise NotApplicableError(f"{type(task.model).__name__} is not a torch model: it has no layers")
    if first_order:
        return expand(task, layer, read)
    refusal: NotApplicableError | None = None
    for parts in _candidates(task, layer):
        try:
            parts.test()
        except NotApplicableError as error:
            refusal = refusal or error
            continue
        return parts
    raise refusal or _not_linear(
        f"the model's outputs are not an affine function of what {layer or 'a linear layer of it'} reads"
    )


def _linear(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return set(module.kernel_size) == {1} and set(module.stride) == {1} and module.groups == 1
    return isinstance(module, nn.Linear)


def _candidates(task: Task, layer: str | None) -> Iterator[Split]:
    """What products read, the last first, where the outputs on a few rows are affine in it."""
    read: list[Tensor] = []
    leaves: list[Tensor] = []
    last: list[bool] = []

    def as_leaf(found: Tensor, channels_last: bool) -> Tensor:
        """Products that read the same tensor share a leaf: the head may be made of several."""
        same = next((i for i, other in enumerate(read) if other is found), None)
        leaves.append(found.detach().clone().requires_grad_(True) if same is None else leaves[same])
        read.append(found)
        last.append(channels_last)
        return leaves[-1]

    outputs, calls = trace(task, as_leaf)
    named = {name: seen for name, seen in calls.items() if _linear(seen.module)}
    if layer is not None and layer not in named:
        raise unknown_name("linear layer", layer, [name for name in named if name])
    for number in reversed(range(len(read))):
        leaf = leaves[number]
        names = [name for name, seen in named.items() if seen.read is read[number]]
        if (layer is not None and layer not in names) or any(leaf is other for other in leaves[number + 1 :]):
            continue
        found = task.uncounted(partial(_affine, outputs, leaf, last[number]))
        if found is None:
            continue
        weight, how = found
        seen = as_positions(leaf.detach(), last[number])
        bias = _without(task, {i for i, other in enumerate(leaves) if other is leaf})
        head = Head(weight, bias, task.head, layer or (names[-1] if names else f"product {number}"))
        where, tokens = _map_layer(calls, seen.mean(1)) if how != "token" else (None, False)
        end: End = "input" if names else "product"
        parts = Split(task, head, head.layer, end, where, how, last[number], len(read) - number, tokens)
        y = outputs.detach().double()
        near = 0.02 * y.abs().amax().clamp(min=1e-6)  # the rows are checked closely when they are collected
        if bool(((head.outputs(seen_of(seen, parts, y)) - y).abs() <= near).all()):
            yield parts


def _affine(outputs: Tensor, leaf: Tensor, channels_last: bool) -> tuple[Tensor, Read] | None:
    """The derivative (C, D) and which positions it is of; None where it is not the same for all rows."""

    def slopes(weights: Tensor) -> Tensor | None:
        weights = weights.to(outputs).expand_as(outputs)
        found = torch.autograd.grad(outputs, leaf, weights, retain_graph=True, allow_unused=True)[0]
        return None if found is None else as_positions(found, channels_last).double()

    some = slopes(torch.linspace(1, 2, outputs.shape[1])) if outputs.requires_grad else None
    if some is None:
        return None
    whole, least = some.sum(1), 0.02 * some.abs().max()
    if not bool(least > 0) or bool(((whole - whole[:1]).abs() > 0.02 * whole.abs().max()).any()):
        return None
    read: Read = "vector" if leaf.dim() == 2 else "mean"
    if bool(((some - some.mean(1, keepdim=True)).abs() > least).any()):
        if bool(((some != 0).any(-1).sum(1) != 1).any()):
            return None
        read = "token"
    # rows do not meet, so that each of them brings the derivative of another output
    rows, count = outputs.shape
    each = [slopes(part) for part in torch.eye(math.ceil(count / rows) * rows, count).split(rows)]
    return torch.cat([part.sum(1) for part in each if part is not None])[:count], read


def _without(task: Task, places: set[int]) -> Tensor:
    """The outputs (C,) where these products read zeros: the bias of a head that they make."""
    numbers = count()
    return trace(task, lambda h, _: torch.zeros_like(h) if next(numbers) in places else h)[0][0].detach()


def _map_layer(calls: dict[str, Call], embedding: Tensor) -> tuple[str | None, bool]:
    """The last layer whose map (N, D, positions...) or tokens (N, T, D: True) average to the embedding."""
    for name in reversed(calls):
        for last in (False, True):
            maps = calls[name].output
            if maps.dim() < 3 or len(maps) != len(embedding):
                continue
            each = as_positions(maps, last)
            if each.shape[1] < 2 or each.shape[2] != embedding.shape[1]:
                continue
            if torch.allclose(each.mean(1), embedding, rtol=1e-3, atol=1e-5):
                return name, last
    return None, False


def seen_of(each: Tensor, at: Split, outputs: Tensor) -> Tensor:
    """What the head sees (N, D) of vectors (N, J, D)."""
    if at.read in ("vector", "mean"):
        return each.mean(1)
    if at.read in ("first", "last"):
        return each[:, 0 if at.read == "first" else -1]
    if at.read == "each":  # as nn.Flatten lays out a map: channels first
        return each.transpose(1, 2).flatten(1)
    own = each.double() @ at.head.weight.T + at.head.bias
    nearest = (own - outputs.double()[:, None]).abs().amax(-1).argmin(1)
    return each[torch.arange(len(each), device=each.device), nearest]


# --- heads that are not linear, through their first-order expansion ---------------------------------------

_ROWS = 64
"""Rows over which an expansion is averaged at most, evenly spread over those at hand."""
_SAME = 1e-6
"""Share of the largest output below which outputs of one embedding are the same for all rows."""


@checked
def expand(task: Task, layer: str | None = None, read: Read | None = None) -> Split:
    """Split at any layer; the head is `F h + b`, the tangent at the mean train embedding.

    All rows have the mean embedding there, and what else the network makes of them elsewhere (on branches
    around the layer): outputs and derivatives are averaged over up to 64 of them.
    """
    calls = trace(task)[1]
    end: End = "output"
    if layer is None:
        linear = [name for name, seen in calls.items() if isinstance(seen.module, nn.Linear)]
        if not linear:
            raise NotApplicableError("the model has no nn.Linear; name the layer that gives the embedding")
        layer, end = linear[-1], "input"
    if layer not in calls:
        raise unknown_name("layer", layer, [name for name in calls if name])
    seen = calls[layer].input if end == "input" else calls[layer].output
    if len(seen) != min(4, len(task), task.predictor.rows):
        raise NotApplicableError(f"layer '{layer}' gives {tuple(seen.shape)}, not one output per sample")
    if seen.dim() > 2 and read not in ("mean", "first", "last", "each"):
        raise NotApplicableError(
            f"layer '{layer}' gives {tuple(seen.shape[1:])} per sample and an embedding is one vector; say "
            "what it is: read='mean' over positions or tokens, 'first' or 'last' of them, or 'each'"
        )
    # dimensions come after the samples in maps, also of one dimension, and last in tokens
    waves = any(isinstance(m, nn.Conv1d | nn.BatchNorm1d) for m in calls[layer].module.modules())
    last = seen.dim() == 2 or (seen.dim() == 3 and not waves)
    how: Read = "vector" if seen.dim() == 2 or read is None else read
    width = as_positions(seen, last).shape[2] if how != "each" else seen[0].numel()
    nothing = torch.zeros(task.n_outputs, width, device=seen.device)
    unknown = Head(nothing, nothing[:, 0], task.head, layer, exact=False)
    parts = Split(task, unknown, layer, end, read=how, channels_last=last)
    rows, side = (task.inputs, task.side) if task.train is None else (task.train, task.train_side)
    mean = (parts.test() if task.train is None else parts.train()).values.double().mean(0)
    few = torch.linspace(0, len(rows) - 1, min(_ROWS, len(rows)), device=rows.device).round().long()
    weight, y = _tangent(parts, rows[few], take_side(side, few), mean)
    return replace(parts, head=Head(weight, y.double() - weight @ mean, task.head, layer, False))


def _tangent(parts: Split, rows: Tensor, side: Side, mean: Tensor) -> tuple[Tensor, Tensor]:
    """F (C, D) and the output that it is laid through, averaged over the rows."""
    task, base = parts.task, mean
    model, found = task.predictor.model, torch.zeros_like(parts.head.weight)
    pieces = torch.arange(len(rows), device=rows.device).split(max(1, min(task.predictor.rows, _ROWS)))
    with task.predictor.session(grad=True) as view:

        def run(i: Tensor, change: Callable[[Tensor], Tensor | None]) -> Tensor:
            with at_layer(model, parts.layer, parts.end, change):
                return call(view, rows[i], take_side(side, i))

        if parts.read != "vector":
            # of a map the mean is that of these rows: of all of them it might not fit
            seen: list[Tensor] = []
            for i in pieces:
                run(i, lambda h: seen.append(h.detach()))
            base = torch.cat(seen).mean(0)
        held = torch.cat([run(i, lambda h: base.to(h).expand_as(h).clone()).detach() for i in pieces])
        y = held.mean(0)
        if bool(((held - y).abs() <= _SAME * held.abs().max()).all()):
            pieces = (pieces[0][:1],)  # no branch leads around the layer: one row tells all
        for i in pieces:
            leaves: list[Tensor] = []

            def as_leaf(h: Tensor, leaves: list[Tensor] = leaves) -> Tensor:
                leaves.append(base.to(h).expand_as(h).clone().requires_grad_(True))
                return leaves[-1].clone()  # a layer after it may work in place, which a leaf does not allow

            outputs = run(i, as_leaf)
            for c in range(task.n_outputs):
                slope = torch.autograd.grad(outputs[:, c].sum(), leaves[-1], retain_graph=True)[0]
                each = as_positions(slope, parts.channels_last)
                # of a mean, the derivative is that of moving all positions together
                moved = each.sum(1) if parts.read == "mean" else seen_of(each, parts, each)
                found[c] += moved.double().sum(0)
    return found / sum(len(i) for i in pieces), y
