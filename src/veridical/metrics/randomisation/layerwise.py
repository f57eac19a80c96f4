"""Models whose layers are randomised step by step, and the maps made under each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from veridical.rng import Key
from veridical.scores import Curve
from veridical.task import Task
from veridical.weights import WeightView, cascade, layers, randomised

Order = Literal["top_down", "bottom_up", "independent"]


def _own_module(task: Task) -> nn.Module:
    """The module whose layers are named: a task under noise keeps its noise where layers stay."""
    model = task.predictor.model
    return model.module if isinstance(model, WeightView) else model


def randomised_worlds(task: Task, order: Order, key: Key) -> Iterator[Task]:
    """The task at each step of the cascade; a layer keeps its fresh weights through later steps.

    The unrandomised model is not among them.
    """
    module = _own_module(task)
    fresh: dict[str, dict[str, Tensor]] = {}
    for names in cascade(module, order):
        # a layer is initialised once, however many steps of the cascade it takes part in
        fresh |= {name: randomised(module, [name], key) for name in names if name not in fresh}
        yield task.with_weights({n: value for name in names for n, value in fresh[name].items()})


def fully_randomised(task: Task, key: Key) -> Task:
    """The task with every layer randomised."""
    module = _own_module(task)
    return task.with_weights(randomised(module, layers(module), key))


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
    clean = explain(task, key / "clean")
    rows = []
    for draw in range(draws):
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
    missing = clean.isnan().all(-1)
    undefined = table.isnan()
    return {
        "no explanation": missing,
        "no layer has a similarity: a map has no spread": undefined.all(-1).all(-1) & ~missing,
        "some layers left out: a map has no spread": undefined.any(-1).any(-1) & ~missing,
    }
