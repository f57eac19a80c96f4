"""Heads that are not linear, seen through their first-order expansion at the mean embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from veridical.errors import NotApplicableError, unknown_name
from veridical.model.predictor import call, take_side
from veridical.surf.head import Head
from veridical.surf.splitting import End, Split, _trace
from veridical.values.task import Task


class _Replaced(nn.Module):
    """The model with the answer (or the input) of one layer put in from outside."""

    def __init__(self, module: nn.Module, layer: str, end: End) -> None:
        super().__init__()
        self.module = module
        self.layer = layer
        self.end = end
        self.embedding = torch.empty(0)

    def forward(self, *args: Any, **named: Any) -> Any:
        target = self.module.get_submodule(self.layer)
        if self.end == "input":
            handle = target.register_forward_pre_hook(lambda _m, _given: (self.embedding,))
        else:
            handle = target.register_forward_hook(lambda _m, _given, _answer: self.embedding)
        try:
            return self.module(*args, **named)
        finally:
            handle.remove()


def expand(task: Task, layer: str | None = None) -> Split:
    """Split at any layer with `F = J(h0)`, `b = y(h0) - J(h0) h0`, h0 the mean train embedding.

    Without a layer: at the input of the last linear layer. A layer's answer counts as the embedding when it
    is one vector a sample; a map (N, D, positions) is refused, since its head would see positions one by one.
    """
    calls = _trace(task)
    end: End = "output"
    if layer is None:
        linear = [name for name, seen in calls.items() if isinstance(seen.module, nn.Linear)]
        if not linear:
            raise NotApplicableError(
                "the model has no nn.Linear; name the layer whose answer is the embedding"
            )
        layer, end = linear[-1], "input"
    if layer not in calls:
        raise unknown_name("layer", layer, calls)
    seen = calls[layer].input if end == "input" else calls[layer].output
    if seen.dim() != 2:
        raise NotApplicableError(
            f"layer '{layer}' answers {tuple(seen.shape[1:])} a sample; an embedding is one vector; choose "
            "a layer after pooling or flattening"
        )
    width = seen.shape[1]
    unknown = Head(
        torch.zeros(task.n_outputs, width, device=task.device),
        torch.zeros(task.n_outputs, device=task.device),
        task.head,
        layer,
        False,
    )
    parts = Split(task, unknown, layer, end)
    mean = (parts.train() if task.train is not None else parts.test()).values.double().mean(0)
    jacobian, at_mean = _jacobian(task, layer, end, mean.to(seen))
    bias = at_mean.double() - jacobian.double() @ mean
    return Split(task, Head(jacobian, bias, task.head, layer, False), layer, end)


def _jacobian(task: Task, layer: str, end: End, point: Tensor) -> tuple[Tensor, Tensor]:
    """J (C, D) and y (C,) at one embedding: a row an output, each asked for its own gradient."""
    view = _Replaced(task.predictor.model, layer, end)
    predictor = task.predictor.with_model(view)
    found, answer = [], point
    with predictor.session(grad=True) as model:
        for at in range(0, task.n_outputs, predictor.rows):
            rows = min(predictor.rows, task.n_outputs - at)
            first = torch.zeros(rows, dtype=torch.int64, device=task.device)
            view.embedding = point.detach().expand(rows, -1).clone().requires_grad_(True)
            outputs = call(model, task.inputs[first], take_side(task.side, first))
            own = outputs[torch.arange(rows), torch.arange(at, at + rows)]
            found.append(torch.autograd.grad(own.sum(), view.embedding)[0])
            answer = outputs[0].detach()
    return torch.cat(found).detach(), answer
