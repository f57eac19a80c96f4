"""What a model thinks of its inputs just before it answers: a layer's activations beside the outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from veridical.errors import InputError, ShapeError, unknown_name
from veridical.models.predictor import Output
from veridical.values.task import Task


def why_no_layer(task: Task, layer: str | None) -> str | None:
    """Why no representation can be read from this model, or None if one can."""
    names = dict(task.predictor.model.named_modules())
    if layer is not None:
        # a noisy view holds the user's module as its child
        return None if _find(names, layer) else str(unknown_name("layer", layer, [n for n in names if n]))
    if any(isinstance(m, nn.Linear) for m in names.values()):
        return None
    return "it reads the input of the last nn.Linear layer and the model has none; name one with layer=..."


def representations(task: Task, layer: str | None = None) -> tuple[Tensor, Tensor]:
    """(N, K) activations and (N, C) outputs from one counted pass, which the caller checks.

    The activations are the answer of the named layer or, with None, what goes into the linear layer that
    is called last.
    """
    view = _Reading(task.predictor.model, layer)
    reader = task.predictor.with_model(view, _Joined(task.predictor.output))
    with reader.session():
        both = reader.chunk(task.inputs, task.side)
    return both[:, : -task.n_outputs], both[:, -task.n_outputs :]


def _find(names: dict[str, nn.Module], layer: str) -> nn.Module | None:
    return next((names[n] for n in (layer, f"module.{layer}", f"module.module.{layer}") if n in names), None)


class _Reading(nn.Module):
    """The child model, answering (what a layer saw or said, its own answer)."""

    def __init__(self, module: nn.Module, layer: str | None) -> None:
        super().__init__()
        self.module = module
        self.layer = layer

    def forward(self, *args: Any, **named: Any) -> tuple[Tensor, Any]:
        seen: list[Tensor] = []

        def before(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen[:] = [inputs[0]]

        def after(_module: nn.Module, _inputs: Any, answer: Any) -> None:
            seen[:] = [answer[0] if isinstance(answer, tuple | list) else answer]

        if self.layer is None:
            linear = [m for m in self.module.modules() if isinstance(m, nn.Linear)]
            hooks = [m.register_forward_pre_hook(before) for m in linear]
        else:
            chosen = _find(dict(self.module.named_modules()), self.layer)
            if chosen is None:
                raise InputError(f"the model has no layer '{self.layer}'")
            hooks = [chosen.register_forward_hook(after)]
        try:
            answer = self.module(*args, **named)
        finally:
            for hook in hooks:
                hook.remove()
        if not seen:
            raise InputError(
                "the model never called the layer whose activations are read; name it by layer=..."
            )
        return seen[0], answer


class _Joined:
    """Activations and outputs side by side, so that one (rows, columns) tensor carries both."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def __call__(self, answer: tuple[Tensor, Any]) -> Tensor:
        activations, outputs = answer[0], self.output(answer[1])
        if len(activations) != len(outputs):
            raise ShapeError(
                f"the layer's activations have shape {tuple(activations.shape)} for {len(outputs)} rows; "
                "their first axis must count samples"
            )
        return torch.cat([activations.flatten(1).to(outputs.dtype), outputs], 1)
