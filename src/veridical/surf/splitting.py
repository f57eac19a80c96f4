"""Split a model at its head: the embeddings before, the linear layer after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from veridical.errors import InputError, NotApplicableError, unknown_name
from veridical.model.predictor import Side, take_side
from veridical.surf.embeddings import Embeddings
from veridical.surf.head import Head
from veridical.values.task import Task

End = Literal["input", "output"]


@dataclass(frozen=True, eq=False)
class Split:
    """A task's model as `f(g(x))`: `head` is f, and `collect` runs g.

    `layer` and `end` say where embeddings are read; `map_layer` names the layer whose answer, averaged over
    positions, is the embedding (None where no layer's is).
    """

    task: Task
    head: Head
    layer: str
    end: End
    map_layer: str | None = None

    def collect(
        self,
        inputs: Tensor,
        side: Side = (),
        labels: Tensor | None = None,
        ids: Tensor | None = None,
        spatial: bool = False,
    ) -> Embeddings:
        """Embeddings and outputs of any rows, in the task's chunks; each row is counted once."""
        if spatial and self.map_layer is None:
            raise NotApplicableError(
                f"no layer before '{self.layer}' gives a map whose mean is the embedding, so there is no "
                "embedding a position; collect with spatial=False"
            )
        layer, end = (self.map_layer, "output") if spatial else (self.layer, self.end)
        tap = _Tap(self.task.predictor.model, layer or "", end)  # type: ignore[arg-type]
        answered = _Answer(self.task.predictor.output, self.task.n_outputs)
        joined = self.task.predictor.with_model(tap, answered).outputs(inputs, side)
        outputs, flat = joined.split([self.task.n_outputs, joined.shape[1] - self.task.n_outputs], 1)
        width = self.head.dimension
        values = flat.reshape(len(flat), -1, width) if spatial else flat
        ids = torch.arange(len(inputs), device=inputs.device) if ids is None else ids
        return Embeddings(values, outputs, ids, labels)

    def test(self, spatial: bool = False) -> Embeddings:
        """The embeddings of the task's inputs, on which explanations are judged; collected once."""
        task = self.task

        def make() -> Embeddings:
            return self.collect(task.inputs, task.side, task.labels, task.ids, spatial)

        return task.cached(f"surf test {self.layer} {self.end} {spatial}", make)

    def train(self, spatial: bool = False) -> Embeddings:
        """The embeddings of the task's train rows, on which concepts are fitted; collected once."""
        task = self.task
        if task.train is None:
            raise InputError(
                "concepts are fitted on train rows and this task has none; make it with "
                "Task(model, inputs, train=...)"
            )
        rows = task.train
        return task.cached(
            f"surf train {self.layer} {self.end} {spatial}",
            lambda: self.collect(rows, task.train_side, task.train_labels, None, spatial),
        )


def split(task: Task, layer: str | None = None, first_order: bool = False) -> Split:
    """Split a task's model at its last linear layer, which is found by itself.

    With `first_order=True`, `layer` names the layer whose answer is the embedding (default: the input of the
    last linear layer), and the head is expanded once at the mean train embedding `h0`:
    `F = J(h0)`, `b = y(h0) - J(h0) h0`.
    """
    if not task.predictor.differentiable:
        raise NotApplicableError(
            f"{type(task.model).__name__} is not a torch model, so it has no layers to split at"
        )
    if first_order:
        from veridical.surf.first_order import expand

        return expand(task, layer)
    calls = _trace(task)
    linear = {name: call for name, call in calls.items() if isinstance(call.module, nn.Linear)}
    if layer is not None and layer not in linear:
        raise unknown_name("linear layer", layer, linear)
    if not linear:
        raise NotApplicableError(
            "the head is not linear: no nn.Linear runs in this model. "
            "split(task, layer, first_order=True) expands a head that is not linear"
        )
    name = layer or next(reversed(linear))
    call = linear[name]
    module = call.module
    weight = call.weight
    bias = call.bias if call.bias is not None else weight.new_zeros(len(weight))
    fits = call.input.dim() == 2 and call.output.dim() == 2
    if fits:
        weight, bias = _columns(weight, bias, task)
        answers = call.input.double() @ weight.double().T + bias.double()
        truth = task.uncounted(
            lambda: task.predictor.outputs(task.inputs[:4], take_side(task.side, slice(4)))
        )
        fits = answers.shape == truth.shape and torch.allclose(answers.to(truth), truth, rtol=1e-3, atol=1e-4)
    if not fits:
        raise NotApplicableError(
            f"the head is not linear: the model's outputs are not what its linear layer '{name}' ({module}) "
            "answers. Give logits, not probabilities (output=...), or use "
            "split(task, layer, first_order=True), which expands the head and reports the error of doing so"
        )
    head = Head(weight, bias, task.head, name)
    return Split(task, head, name, "input", _map_layer(calls, call.input))


@dataclass(frozen=True, eq=False)
class _Call:
    """What one layer was given and answered, with the weights it used."""

    module: nn.Module
    input: Tensor
    output: Tensor
    weight: Tensor
    bias: Tensor | None


def _trace(task: Task) -> dict[str, _Call]:
    """The layers in the order in which they finish on a few rows."""
    calls: dict[str, _Call] = {}
    few = slice(0, 4)

    def note(name: str, module: nn.Module, given: tuple[Any, ...], answer: Any) -> None:
        if given and isinstance(given[0], Tensor) and isinstance(answer, Tensor):
            weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
            calls.pop(name, None)
            calls[name] = _Call(
                module,
                given[0].detach(),
                answer.detach().clone(),
                weight.detach().clone() if isinstance(weight, Tensor) else torch.empty(0),
                bias.detach().clone() if isinstance(bias, Tensor) else None,
            )

    hooks = [
        module.register_forward_hook(partial(note, name))
        for name, module in task.predictor.model.named_modules()
        if name and not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        with task.session() as model:
            side = take_side(task.side, few)
            rows = task.inputs[few]
            task.uncounted(lambda: model(rows, **side) if isinstance(side, dict) else model(rows, *side))
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _columns(weight: Tensor, bias: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """The layer's weights as the task reads its outputs: a binary head has the two columns (-z, z)."""
    if task.head != "binary":
        return weight, bias
    if len(weight) == 2:
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    return torch.cat([-weight, weight]), torch.cat([-bias, bias])


def _map_layer(calls: dict[str, _Call], embedding: Tensor) -> str | None:
    """The last layer whose map (N, D, positions...) averages to the embedding."""
    for name in reversed(calls):
        maps = calls[name].output
        if maps.dim() < 3 or maps.shape[:2] != embedding.shape or maps[0, 0].numel() < 2:
            continue
        if torch.allclose(maps.flatten(2).mean(2), embedding, rtol=1e-3, atol=1e-5):
            return name
    return None


class _Tap(nn.Module):
    """The model and, beside its answer, what went into or came out of one layer.

    A map (N, D, positions...) comes out with its positions first: the vectors one after another.
    """

    def __init__(self, module: nn.Module, layer: str, end: End) -> None:
        super().__init__()
        self.module = module
        self.layer = layer
        self.end = end

    def forward(self, *args: Any, **named: Any) -> tuple[Any, Tensor]:
        seen: list[Tensor] = []

        def note(_module: nn.Module, given: tuple[Any, ...], answer: Any) -> None:
            seen.append(given[0] if self.end == "input" else answer)

        handle = self.module.get_submodule(self.layer).register_forward_hook(note)
        try:
            answer = self.module(*args, **named)
        finally:
            handle.remove()
        found = seen[-1]
        if found.dim() > 2:
            found = found.flatten(2).transpose(1, 2) if self.end == "output" else found
            found = found.flatten(1)
        return answer, found


class _Answer:
    """Reads outputs and embedding of a tap as one row: the predictor carries one tensor."""

    def __init__(self, output: Callable[[Any], Tensor], n_outputs: int) -> None:
        self.output = output
        self.n_outputs = n_outputs

    def __call__(self, answer: tuple[Any, Tensor]) -> Tensor:
        outputs = self.output(answer[0])
        return torch.cat([outputs, answer[1].to(outputs)], 1)
