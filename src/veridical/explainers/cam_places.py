"""Where class activation maps find their layer: shapes of all layers, the last maps, a hook on one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from veridical.explainers.cam_layer import LastMaps
from veridical.explainers.graph.followed import Followed, Plans, alike
from veridical.explainers.grid import spatial_axes
from veridical.models.predictor import call, plain_output, take_side
from veridical.values.task import Task


def layer_shapes(task: Task) -> dict[str, list[tuple[int, ...]]]:
    """The output shapes of every layer for one row, in the order they ran; asked once, and not counted."""
    found: dict[str, list[tuple[int, ...]]] = task.reference.cached(
        "layer shapes", lambda: task.uncounted(lambda: _ask_shapes(task.reference))
    )
    return found


def _ask_shapes(task: Task) -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {}
    handles = []
    with task.session() as view:
        try:
            for name, layer in task.predictor.model.named_modules():

                def after(_layer: nn.Module, _inputs: Any, output: Any, name: str = name) -> None:
                    if isinstance(output, Tensor):
                        found.setdefault(name, []).append(tuple(output.shape))

                if not isinstance(layer, torch.jit.ScriptModule):
                    handles.append(layer.register_forward_hook(after))
            call(view, task.inputs[:1], take_side(task.side, slice(0, 1)))
        finally:
            for handle in handles:
                handle.remove()
    return found


@dataclass(frozen=True)
class Place:
    """Where the last maps of a model are."""

    words: str
    """The operation that makes them and their size; nothing if there are none."""
    grid: tuple[int, ...]
    channels: int
    transformer: bool
    """Whether they are tokens."""
    astray: bool
    """Whether the model answers otherwise when it is followed."""
    lost: bool
    """Whether its tokens cannot be laid on the grid of its patches."""
    behind: bool
    """Whether tokens of its own stand behind those of its patches."""


def last_maps(task: Task) -> Place:
    """What one row shows of the model's last maps; asked once, and not counted."""
    found: Place = task.reference.cached("last maps", lambda: task.uncounted(lambda: _ask(task.reference)))
    return found


def _ask(task: Task) -> Place:
    row, side = task.inputs[:1], take_side(task.side, slice(0, 1))
    with task.session() as model:
        with LastMaps(row, spatial_axes(task)) as seen:
            # by one operation more, which reads what was written in place
            followed = call(model, row, side).clone()
        own = call(model, row, side)
        # unless it answers otherwise whenever it is asked
        astray = not alike(followed, own) and alike(own, call(model, row, side))
    tokens = "the last residual sum of tokens by which patches reach the output"
    words = tokens if seen.transformer else seen.place
    channels = 0 if seen.last is None else seen.last.shape[1]
    return Place(words, seen.grid, channels, seen.transformer, astray, seen.lost, seen.behind)


class Looked(Followed):
    """A model whose last maps are known after it was asked: found as it runs, or by a run written down."""

    def forward(self, x: Tensor, /, *side: Any, **named: Any) -> Tensor:
        follower = self.kept["last maps"] = self._follower(x)
        return self.followed(follower, x, side, named)


def looked_at(task: Task) -> Task:
    """The task whose model tells its last maps; what was written down of its runs is kept for the task."""
    _ = task.targets  # by which the model's own outputs are known, where they are asked for
    inner = task.predictor
    model = Looked(inner.model, inner.output, partial(LastMaps, axes=spatial_axes(task)))
    model.plans = task.reference.cached("plans of the last maps", Plans)
    return task.changed(predictor=inner.with_model(model, plain_output), outputs=task.known("outputs"))


@contextmanager
def _watched(task: Task, name: str) -> Iterator[list[Tensor]]:
    """What the layer answers while the body runs; the hook goes also when the body raises."""
    seen: list[Tensor] = []

    def after(_layer: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        seen.append(output)
        # the model goes on with a copy: an activation in place would overwrite what we keep
        return output.clone()

    model = task.predictor.model
    # a view of other weights holds the caller's module under a name of its own
    original = task.reference.predictor.model.get_submodule(name)
    layer = original if any(m is original for m in model.modules()) else _under(model, name)
    handle = layer.register_forward_hook(after)
    try:
        yield seen
    finally:
        handle.remove()


def _under(model: nn.Module, name: str) -> nn.Module:
    named = dict(model.named_modules())
    return named[name] if name in named else named[f"module.{name}"]
