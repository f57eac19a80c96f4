"""Any unit of any layer as the model function (GEF A.1.2)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from veridical.errors import InputError, ShapeError, unknown_name
from veridical.models.predictor import take_side
from veridical.values.task import Task


class NeuronView(nn.Module):
    """The child model, answering with the activations of one of its layers, averaged over positions.

    `axis` counts the units in the layer's output; every axis but that one and the first is averaged over.
    """

    def __init__(self, module: nn.Module, layer: str, axis: int = 1) -> None:
        super().__init__()
        self.module = module
        self.layer = layer
        self.axis = axis

    def forward(self, x: Tensor, /, *side: Any, **named: Any) -> Tensor:
        seen: list[Tensor] = []

        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            seen.append(output[0] if isinstance(output, tuple | list) else output)

        handle = self.module.get_submodule(self.layer).register_forward_hook(keep)
        try:
            self.module(x, *side, **named)
        finally:
            handle.remove()
        if not seen:
            raise ShapeError(f"layer '{self.layer}' did not run")
        activation = seen[-1]
        if activation.dim() < 2 or len(activation) != len(x):
            raise ShapeError(
                f"layer '{self.layer}' answered shape {tuple(activation.shape)} to {len(x)} rows; expected "
                "one row per sample"
            )
        return activation.movedim(self.axis, 1).flatten(2).mean(2) if activation.dim() > 2 else activation


def at_neuron(task: Task, layer: str, unit: int, axis: int = 1) -> Task:
    """The same inputs where what is explained is the mean activation of a unit of a layer.

    `axis` says where the layer's output counts its units: 1 for channels of a convolution, -1 for the
    features of a transformer block. Activations are real numbers, so the task is a regression: its noise path
    ends where nothing of the activations is left (R^2 <= 0); give GEF the classifier's path to compare.
    """
    model = task.predictor.model
    known = [name for name, _ in model.named_modules() if name]
    if layer not in known:
        raise unknown_name("layer", layer, known)
    view = partial(NeuronView, layer=layer, axis=axis)
    moved = task.changed(predictor=task.predictor.wrapped(view, output=_as_is))
    outputs = task.uncounted(
        lambda: moved.predictor.outputs(task.inputs[:1], take_side(task.side, slice(0, 1)))
    )
    units = outputs.shape[1]
    if not 0 <= unit < units:
        raise InputError(f"layer '{layer}' has units 0 to {units - 1}, got {unit}")
    targets = torch.full((len(task),), unit, device=task.device)
    return moved.changed(alone=True, head="regression", n_outputs=units, targets=targets)


def _as_is(answer: Any) -> Tensor:
    outputs: Tensor = answer
    return outputs
