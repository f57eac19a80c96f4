"""Split a model at its head: the embeddings before, the linear layer after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from veridical.concepts.embeddings import Embeddings, Head
from veridical.errors import InputError, NotApplicableError, unknown_name
from veridical.functional.devices import on_host
from veridical.models.predictor import Side, take_side
from veridical.values.task import Task

End = Literal["input", "output", "product"]
"""What is read: a layer's input, its answer, or the left side of a matrix product that no layer owns."""

_PRODUCTS = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1, torch.ops.aten.bmm.default: 0}
"""Matrix products as torch carries them out, with the place of their left side among the arguments."""


@dataclass(frozen=True, eq=False)
class Call:
    """What one layer was given and answered, with the weights it used."""

    module: nn.Module | None
    input: Tensor
    output: Tensor
    weight: Tensor
    bias: Tensor | None = None


def first_tensor(value: Any) -> Tensor | None:
    """The tensor that a layer hands on: blocks of transformers answer it as the first of several."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple | list) and value:
        return first_tensor(value[0])
    return None


def with_first(value: Any, new: Tensor) -> Any:
    """The same answer with its tensor replaced."""
    if isinstance(value, Tensor):
        return new
    return type(value)((with_first(value[0], new), *value[1:]))


@contextmanager
def at_layer(
    module: nn.Module, layer: str, end: End, change: Callable[[Tensor], Tensor | None]
) -> Iterator[None]:
    """While this is open, what a layer is given or answers passes through `change`; None leaves it."""

    def before(_module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        new = change(given[0])
        return None if new is None else (new, *given[1:])

    def after(_module: nn.Module, _given: tuple[Any, ...], answer: Any) -> Any:
        found = first_tensor(answer)
        new = None if found is None else change(found)
        return None if new is None else with_first(answer, new)

    target = module.get_submodule(layer)
    on_input = end == "input"
    handle = target.register_forward_pre_hook(before) if on_input else target.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


class _Products(TorchDispatchMode):
    """Notes every matrix product, whoever calls for it: a layer, `F.linear`, `@` or `torch.einsum`."""

    def __init__(self, note: Callable[[int, Tensor, Tensor, Tensor | None, Tensor], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note = note
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            at = _PRODUCTS[func]
            left, right, out = args[at], args[at + 1], answer
            if left.dim() == 3 and len(left) == 1:  # einsum multiplies batches, of one
                left, right, out = left[0], right[0], out[0]
            if left.dim() == 2:
                self.note(self.count, left, right, args[0] if at else None, out)
                self.count += 1
        return answer


def trace(task: Task, with_products: bool = False) -> tuple[dict[str, Call], list[Call]]:
    """Layers in the order in which they finish on a few rows, the model itself last; and all products.

    Products are noted only if asked for: torch loads much of itself to watch its own operations.
    """
    calls: dict[str, Call] = {}
    products: list[Call] = []
    few = slice(0, 4)

    def note(name: str, module: nn.Module, given: tuple[Any, ...], answer: Any) -> None:
        found = first_tensor(answer)
        if given and isinstance(given[0], Tensor) and found is not None:
            weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
            calls.pop(name, None)
            calls[name] = Call(
                module,
                given[0].detach().clone(),
                found.detach().clone(),
                weight.detach().clone() if isinstance(weight, Tensor) else torch.empty(0),
                bias.detach().clone() if isinstance(bias, Tensor) else None,
            )

    def product(_at: int, left: Tensor, right: Tensor, added: Tensor | None, answer: Tensor) -> None:
        products.append(Call(None, left.detach(), answer.detach(), right.detach().T, added))

    hooks = [
        module.register_forward_hook(partial(note, name))
        for name, module in task.predictor.model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        watched = _Products(product) if with_products else nullcontext()
        with task.session() as model, watched:
            side = take_side(task.side, few)
            rows = task.inputs[few]
            task.uncounted(lambda: model(rows, **side) if isinstance(side, dict) else model(rows, *side))
    finally:
        for hook in hooks:
            hook.remove()
    return calls, products


def as_positions(found: Tensor, channels_last: bool) -> Tensor:
    """A layer's answer as vectors (N, J, D), one at each position; J = 1 where it is one vector."""
    if found.dim() == 2:
        return found[:, None]
    return found.flatten(1, -2) if channels_last else found.flatten(2).transpose(1, 2)


class Tap(nn.Module):
    """The model and, beside its answer, what one layer or product was given or answered."""

    def __init__(self, module: nn.Module, layer: str, end: End, product: int = 0) -> None:
        super().__init__()
        self.module = module
        self.layer, self.end, self.product = layer, end, product

    def forward(self, *args: Any, **named: Any) -> tuple[Any, Tensor]:
        seen: list[Tensor] = []

        def keep(found: Tensor) -> None:
            seen.append(found.clone())  # a copy: a layer that works in place would write over it

        def product(at: int, left: Tensor, *rest: Any) -> None:
            if at == self.product:
                keep(left)

        layer = partial(at_layer, self.module, self.layer, self.end, keep)
        with _Products(product) if self.end == "product" else layer():
            answer = self.module(*args, **named)
        return answer, seen[-1]


Read = Literal["vector", "mean", "first", "last", "token", "each"]
"""What the head sees of a layer with positions or tokens: the mean over them, one of them, or all in a row.

"token" is the one that the model's own output comes from, which may be another one in every sample."""

_ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 2**-8, torch.bfloat16: 2**-6}
"""How far, as a share of `|F| |h| + |b|`, products of a precision may be from the exact ones."""


@dataclass(frozen=True, eq=False)
class Split:
    """A task's model as `f(g(x))`: `head` is f, and `collect` runs g.

    `layer` and `end` say where embeddings are read, and `read` what becomes one vector of a sample;
    `map_layer` names the layer whose answer, averaged over positions, is the embedding (None: no layer's is).
    """

    task: Task
    head: Head
    layer: str
    end: End
    map_layer: str | None = None
    read: Read = "vector"
    channels_last: bool = True
    product: int = 0
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

        Where the head is said to be linear, every row must bear it out.
        """
        if spatial and not self.positions:
            raise NotApplicableError(
                f"no layer before '{self.layer}' gives a map whose mean is the embedding, so there is no "
                "embedding at each position; collect with spatial=False"
            )
        at = self
        if spatial and self.map_layer is not None:
            at = replace(
                self, layer=self.map_layer, end="output", read="mean", channels_last=self.map_channels_last
            )
        tap = Tap(self.task.predictor.model, at.layer, at.end, at.product)
        answered = _Answer(self.task.predictor.output, at, spatial)
        joined = self.task.predictor.with_model(tap, answered).outputs(inputs, side)
        width = self.head.dimension
        outputs, flat = joined.split([self.task.n_outputs, joined.shape[1] - self.task.n_outputs], 1)
        ids = torch.arange(len(inputs), device=inputs.device) if ids is None else ids
        values, seen = flat, None
        if spatial:
            values = flat.reshape(len(flat), -1, width)
            if at.read != "mean":
                values, seen = values[:, 1:], values[:, 0]
        found = Embeddings(values, outputs, ids, labels, "positions" if spatial else "pooled", seen)
        self._check_linear(found)
        return found

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
                raise NotApplicableError(
                    f"the head is not linear: on row {first} the model's outputs are not what its linear "
                    f"layer '{self.layer}' answers (largest difference "
                    f"{float((self.head.outputs(h) - y).abs().max()):.3g}). Give logits, not probabilities "
                    "(output=...), or use split(task, layer, first_order=True), which expands the head and "
                    "reports the error of doing so"
                )

    def test(self, spatial: bool = False) -> Embeddings:
        """The embeddings of the task's inputs, on which explanations are judged; collected once."""
        task = self.task
        if ("test", spatial) not in self._collected:
            found = self.collect(task.inputs, task.side, task.labels, task.ids, spatial)
            self._collected["test", spatial] = found
        return self._collected["test", spatial]

    def train(self, spatial: bool = False) -> Embeddings:
        """The embeddings of the task's train rows, on which concepts are fitted; collected once."""
        task = self.task
        if task.train is None:
            raise InputError(
                "concepts are fitted on train rows and this task has none; make it with "
                "Task(model, inputs, train=...)"
            )
        if ("train", spatial) not in self._collected:
            found = self.collect(task.train, task.train_side, task.train_labels, None, spatial)
            self._collected["train", spatial] = found
        return self._collected["train", spatial]


def split(
    task: Task,
    layer: str | None = None,
    first_order: bool = False,
    read: Read | None = None,
    at: Literal["mean", "samples", "path"] = "mean",
) -> Split:
    """Split a task's model at its last linear layer, which is found by itself.

    A 1x1 convolution before average pooling, a product of functions (`F.linear`, `@`, `einsum`), a bare
    `nn.Linear` and a layer over tokens of which one is answered are such layers too. All outputs must be what
    the layer answers, and what is added to all of them alike.

    Parameters
    ----------
    task
        A task with a torch model.
    layer
        The linear layer, or with `first_order` any layer, whose answer is the embedding (default: the input
        of the last linear layer).
    first_order
        Expand a head that is not linear: `F = J(h0)`, `b = y(h0) - J(h0) h0`.
    read
        What becomes one vector of a sample where an expanded layer has positions or tokens: "mean", "first",
        "last", or "each": all in a row.
    at
        Where the head is expanded: at the mean train embedding, at the samples or along the path between,
        each averaged.

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
        raise NotApplicableError(
            f"{type(task.model).__name__} is not a torch model, so it has no layers to split at"
        )
    if first_order:
        from veridical.concepts.first_order import expand

        return expand(task, layer, read, at)
    calls, _ = trace(task)
    named = {name: call for name, call in calls.items() if _linear(call.module)}
    if layer is not None and layer not in named:
        raise unknown_name("linear layer", layer, [name for name in named if name])
    chosen = {layer: named[layer]} if layer is not None else named
    refusal: NotApplicableError | None = None
    for parts in _candidates(task, calls, chosen, layer is None):
        try:
            parts.test()
        except NotApplicableError as error:
            refusal = refusal or error
            continue
        return parts
    if refusal is not None:
        raise refusal
    if not named:
        raise NotApplicableError(
            "the head is not linear: no nn.Linear runs in this model. "
            "split(task, layer, first_order=True) expands a head that is not linear"
        )
    name, call = next(reversed(chosen.items()))
    raise NotApplicableError(
        f"the head is not linear: the model's outputs are not what its linear layer '{name}' ({call.module}) "
        "answers. Give logits, not probabilities (output=...), or use "
        "split(task, layer, first_order=True), which expands the head and reports the error of doing so"
    )


def _linear(module: nn.Module | None) -> bool:
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return set(module.kernel_size) == {1} and set(module.stride) == {1} and module.groups == 1
    return isinstance(module, nn.Linear)


def _candidates(task: Task, calls: dict[str, Call], named: dict[str, Call], unnamed: bool) -> Iterator[Split]:
    """Layers, the last first, then products without a layer, whose answers on a few rows are the outputs."""
    truth = task.outputs[:4].double()
    for name, call in reversed(named.items()):
        last = isinstance(call.module, nn.Linear)
        weight, bias = _columns(call, task, truth)
        read = _fitting(call, weight, bias, truth, last)
        if read is not None:
            head = Head(weight, bias, task.head, name)
            embedding = as_positions(call.input, last).mean(1)
            where, tokens = _map_layer(calls, embedding) if read in ("vector", "mean") else (None, False)
            yield Split(task, head, name, "input", where, read, last, map_channels_last=tokens)
    products = trace(task, with_products=True)[1] if unnamed else []
    for number in reversed(range(len(products))):
        call = products[number]
        weight, bias = _columns(call, task, truth)
        if len(call.input) == len(truth) and _fitting(call, weight, bias, truth, True) == "vector":
            where, tokens = _map_layer(calls, call.input)
            name = f"product {number}"
            head = Head(weight, bias, task.head, name)
            yield Split(task, head, name, "product", where, product=number, map_channels_last=tokens)


def _fitting(call: Call, weight: Tensor, bias: Tensor, truth: Tensor, channels_last: bool) -> Read | None:
    """How the outputs come from the layer's answers at each position; None where they do not."""
    if call.input.dim() < 2 or len(call.input) != len(truth) or len(weight) != truth.shape[1]:
        return None
    each = as_positions(call.input, channels_last).double()
    if each.shape[-1] != weight.shape[1]:
        return None
    answers = each @ weight.double().T + bias.double()
    near = 0.02 * truth.abs().amax().clamp(min=1e-6)  # the rows are checked closely when they are collected

    def fits(y: Tensor) -> bool:
        return bool(((y - truth).abs() <= near).all())

    if fits(answers.mean(1)):
        return "vector" if call.input.dim() == 2 else "mean"
    nearest = (answers - truth[:, None]).abs().amax(-1).argmin(1)
    return "token" if fits(answers[torch.arange(len(truth)), nearest]) else None


def _columns(call: Call, task: Task, truth: Tensor) -> tuple[Tensor, Tensor]:
    """The layer's weights as the task reads its outputs: a binary head has the two columns (-z, z).

    A layer without a bias may have one that is added later: it is the same for all rows, or the fit fails.
    """
    weight = call.weight.flatten(1)
    bias = weight.new_zeros(len(weight)) if call.bias is None else call.bias.expand(len(weight))
    if task.head == "binary" and len(weight) <= 2:
        if len(weight) == 2:
            weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
        weight, bias = torch.cat([-weight, weight]), torch.cat([-bias, bias])
    if call.bias is None and call.input.shape == (len(truth), weight.shape[-1]) and len(truth) > 1:
        answers = call.input.double() @ weight.double().T
        if answers.shape == truth.shape and not torch.allclose(answers, truth, rtol=1e-4, atol=1e-6):
            bias = (truth - answers).mean(0).to(weight)
    return weight, bias


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


class _Answer:
    """Reads outputs and embedding of a tap as one row: the predictor carries one tensor."""

    def __init__(self, output: Callable[[Any], Tensor], at: Split, spatial: bool) -> None:
        self.output, self.at, self.spatial = output, at, spatial

    def __call__(self, answer: tuple[Any, Tensor]) -> Tensor:
        outputs = self.output(answer[0])
        each = as_positions(answer[1], self.at.channels_last).to(outputs)
        parts = [outputs]
        if not (self.spatial and self.at.read == "mean"):
            parts.append(seen_of(each, self.at, outputs))
        if self.spatial:
            parts.append(each.flatten(1))
        return torch.cat(parts, 1)


def seen_of(each: Tensor, at: Split, outputs: Tensor) -> Tensor:
    """What the head sees (N, D) of vectors (N, J, D)."""
    if at.read in ("vector", "mean"):
        return each.mean(1)
    if at.read in ("first", "last"):
        return each[:, 0 if at.read == "first" else -1]
    if at.read == "each":  # as nn.Flatten lays out a map: channels first
        return each.transpose(1, 2).flatten(1)
    answers = each.double() @ at.head.weight.T + at.head.bias
    nearest = (answers - outputs.double()[:, None]).abs().amax(-1).argmin(1)
    return each[torch.arange(len(each), device=each.device), nearest]
