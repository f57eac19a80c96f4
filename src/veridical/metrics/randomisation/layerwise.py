"""Models whose layers are randomised step by step, and the maps made under each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from veridical.metrics.types import Curve, Key, Task
from veridical.models.randomised_layers import cascade, drawing
from veridical.models.weights import Replaced, layers

_WEIGHTS_KEPT = 2**25
"""Numbers of drawn weights that a task keeps: 128 MB."""
Order = Literal["top_down", "bottom_up", "independent"]


def randomised_worlds(task: Task, order: Order, key: Key) -> Iterator[Task]:
    """The task at each step of the cascade; a layer keeps its fresh weights through later steps.

    The unrandomised model is not among them. Weights begin to be drawn at once, whenever they are asked for.
    """
    return _worlds(task, order, key, lambda module: cascade(module, order))


def fully_randomised(task: Task, key: Key) -> Callable[[], Task]:
    """The task with every layer randomised, once it is called for; its weights begin to be drawn at once."""
    worlds = _worlds(task, "all at once", key, lambda module: [layers(module)])
    return lambda: next(worlds)


def _worlds(
    task: Task, how: str, key: Key, steps_of: Callable[[nn.Module], list[list[str]]]
) -> Iterator[Task]:
    """The task with the layers of each step randomised.

    These worlds do not depend on what is judged in them: a task keeps the last, unless they are very large.
    """
    kept: dict[tuple[str, Key], list[Task]] = task.cached("randomised worlds", dict)
    if (how, key) in kept:
        return iter(kept[how, key])
    module = task.predictor.unwrapped
    steps = steps_of(module)
    drawn = drawing(module, list(dict.fromkeys(layer for names in steps for layer in names)), key)

    def worlds() -> Iterator[Task]:
        fresh, made = drawn(), []
        size = sum(value.numel() for own in fresh.values() for value in own.values())
        for step, names in enumerate(steps, 1):
            own = {n: value for layer in names for n, value in fresh[layer].items()}
            # not copied, as weights by name would be: nobody else has these, and they may be large
            made.append(task.with_weights(Replaced(own, task.predictor.weights)))
            if step == len(steps) and size <= _WEIGHTS_KEPT:
                if size * (len(kept) + 1) > _WEIGHTS_KEPT:
                    kept.clear()
                kept[how, key] = made
            yield made[-1]

    return worlds()


def similarity_by_layer(
    task: Task,
    order: Order,
    draws: int,
    key: Key,
    explain: Callable[[Task, Key], Tensor],
    ready: Callable[[Tensor], Tensor],
    alike: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The clean maps, and their similarity to the maps of each randomised model (N, draws, layers).

    `ready` makes maps (N, V) ready to be compared, the clean ones once; `alike` compares two of them: (N,).
    """
    worlds = randomised_worlds(task, order, key / "weights" / 0)
    clean = explain(task, key / "clean")
    first = ready(clean)
    rows = []
    for draw in range(draws):
        if draw:
            worlds = randomised_worlds(task, order, key / "weights" / draw)
        own = key / "explain" / draw
        found = [alike(first, ready(explain(world, own / step))) for step, world in enumerate(worlds)]
        rows.append(torch.stack(found, 1))
    return clean, torch.stack(rows, 1)


def layer_curve(table: Tensor, order: Order, y_label: str) -> Curve:
    """The mean over draws of each layer's similarity, as a curve over the cascade."""
    steps = torch.arange(1, table.shape[-1] + 1, device=table.device)
    return Curve(steps, table.nanmean(1), f"layers randomised, {order.replace('_', ' ')}", y_label)
