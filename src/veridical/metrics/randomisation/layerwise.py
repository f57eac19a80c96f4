"""Models whose layers are randomised step by step, and the maps made under each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from veridical.rng import Key
from veridical.scores import Curve
from veridical.task import Task
from veridical.weights import WeightView, cascade, drawing, layers

Order = Literal["top_down", "bottom_up", "independent"]


def _own_module(task: Task) -> nn.Module:
    """The module whose layers are named: a task under noise keeps its noise where layers stay."""
    model = task.predictor.model
    return model.module if isinstance(model, WeightView) else model


def randomised_worlds(task: Task, order: Order, key: Key) -> Iterator[Task]:
    """The task at each step of the cascade; a layer keeps its fresh weights through later steps.

    The unrandomised model is not among them. Weights begin to be drawn at once, whenever they are asked for.
    """
    module = _own_module(task)
    steps = cascade(module, order)
    drawn = drawing(module, list(dict.fromkeys(name for names in steps for name in names)), key)

    def worlds() -> Iterator[Task]:
        fresh = drawn()
        for names in steps:
            yield _under(task, {n: value for name in names for n, value in fresh[name].items()})

    return worlds()


def fully_randomised(task: Task, key: Key) -> Callable[[], Task]:
    """The task with every layer randomised, once it is called for; its weights begin to be drawn at once."""
    module = _own_module(task)
    drawn = drawing(module, layers(module), key)
    return lambda: _under(task, {n: v for layer in drawn().values() for n, v in layer.items()})


def _under(task: Task, fresh: dict[str, Tensor]) -> Task:
    """`task.with_weights` without its copy: nobody else has these, and copying large weights takes long."""
    return task.with_module(WeightView(task.predictor.model, fresh, copied=False))


def similarity_by_layer(
    task: Task,
    order: Order,
    draws: int,
    key: Key,
    explain: Callable[[Task, Key], Tensor],
    alike: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The clean maps, and their similarity to the maps of each randomised model (N, draws, layers).

    `explain` gives maps ready to be compared, so that the clean one is ranked once.
    """
    worlds = randomised_worlds(task, order, key / "weights" / 0)
    clean = explain(task, key / "clean")
    rows = []
    for draw in range(draws):
        if draw:
            worlds = randomised_worlds(task, order, key / "weights" / draw)
        own = key / "explain" / draw
        rows.append(torch.stack([alike(clean, explain(w, own / step)) for step, w in enumerate(worlds)], -1))
    return clean, torch.stack(rows, 1)


def layer_curve(table: Tensor, order: Order, y_label: str) -> Curve:
    """The mean over draws of each layer's similarity, as a curve over the cascade."""
    steps = torch.arange(1, table.shape[-1] + 1, device=table.device)
    return Curve(steps, table.nanmean(1), f"layers randomised, {order.replace('_', ' ')}", y_label)


def layer_flags(clean: Tensor, table: Tensor) -> dict[str, Tensor]:
    """Which samples have layers without a similarity, and why."""
    missing = clean.isnan().any(-1)
    undefined = table.isnan()
    return {
        "no explanation": missing,
        "no layer has a similarity: a map has no spread": undefined.all(-1).all(-1) & ~missing,
        "some layers left out: a map has no spread": undefined.any(-1).any(-1) & ~missing,
    }
