"""Where class activation maps look when no layer is named: what the model computes last on a grid of places.

In a convolutional network that is the last value on the grid of its last convolution: behind the norm, the
activation, the residual sum and the concatenation that follow it, also where those are no layers. In a vision
transformer (one convolution, which cuts patches) it is the last residual sum of tokens through which patches
still reach the answer: behind it only the class token counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from veridical.explainers.grid import spatial_axes
from veridical.explainers.trace.explainer import agree
from veridical.explainers.trace.operations import tensors
from veridical.explainers.trace.tracer import Tracer
from veridical.models.predictor import call, take_side
from veridical.values.task import Task

_CONVOLUTIONS = frozenset(f"conv{kind}{axes}d" for kind in ("", "_transpose") for axes in (1, 2, 3))
_SUMS = frozenset({"add", "iadd", "radd"})
_JOINS = frozenset({"cat", "concat", "concatenate"})
_EXTRA = 2
"""The most class and distillation tokens that stand before those of the patches."""


class LastMaps(Tracer):
    """Notes while a model runs which values lie on a grid of `axes` axes."""

    def __init__(self, x: Tensor, axes: int) -> None:
        super().__init__(x)
        self.axes, self.rows = axes, len(x)
        self.grid: tuple[int, ...] = ()
        self.place = ""
        self.last: Tensor | None = None
        self.tokens: list[Tensor] = []
        self._convolutions, self._patches, self._lost = 0, False, False
        self._just_made = False
        self._layers: list[str] = []
        self._runs: dict[str, int] = {}
        self.behind = False
        """Whether tokens of the model's own stand behind those of the patches."""

    @property
    def transformer(self) -> bool:
        """Whether the only convolution cuts the input into patches, and tokens follow."""
        return self._convolutions == 1 and self._patches and bool(self.tokens)

    @property
    def lost(self) -> bool:
        """Whether tokens follow the patches that cannot be laid on their grid: registers, or rows behind."""
        return self._convolutions == 1 and self._patches and self._lost

    @property
    def layer(self) -> str | None:
        """The layer that runs once and whose output the last maps are, if there is one."""
        return next((name for name in self._layers if self._runs[name] == 1), None)

    def after_layer(self, name: str, output: Any) -> None:
        """Note that a layer has run; its output stands for the last maps if nothing has read them before."""
        self._runs[name] = self._runs.get(name, 0) + 1
        if self._just_made and output is self.last:
            self._layers.append(name)

    def __enter__(self) -> Any:
        if self._with_gradients:
            # by which is known what depends on the input behind what cannot be traced
            self.x.requires_grad_(True)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.forget()

    def _refuse_untraced(self, given: list[Tensor]) -> None:
        # a gradient passes what cannot be traced
        self.attributed.add(v for v in given if v.requires_grad and not v.is_leaf)

    def _trace(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, attributed: bool) -> Any:
        value = func(*args, **kwargs)
        self._just_made = False
        for made in tensors(value):
            if made.is_floating_point():
                self.attributed.add([made])
                if name not in ("detach", "data"):  # no gradient comes back to a copy that is cut off
                    self._note(name, made, args, kwargs)
        return value

    def _note(self, name: str, made: Tensor, args: Any, kwargs: Any) -> None:
        shape = tuple(made.shape)
        if name in _JOINS and self._patches and self.last is not None and shape[2:] == self.last.shape[1:2]:
            parts = args[0] if args else kwargs["tensors"]
            # a token for each row is laid beside the patches: made of the model's own weights alone
            self.behind |= parts[-1] not in self.attributed and parts[-1].shape[1] <= _EXTRA
        fits = len(shape) == 2 + self.axes and shape[0] == self.rows and prod(shape[2:]) > 1
        if name in _CONVOLUTIONS and fits:
            self.grid, self.tokens = shape[2:], []
            self._convolutions += 1
            kernel = (args[1] if len(args) > 1 else kwargs["weight"]).shape[2:]
            stride = args[3] if len(args) > 3 else kwargs.get("stride", 1)
            stride = (stride,) * self.axes if isinstance(stride, int) else tuple(stride)
            self._patches = tuple(kernel) == stride and max(kernel) > 1
        if fits and shape[2:] == self.grid:
            if made is not self.last:
                self._just_made, self._layers = True, []
            self.last, self.place = made, f"{name}, {shape[1]} x {' x '.join(map(str, self.grid))}"
        elif name in _SUMS and self.grid and shape[0] == self.rows and self._laid(made) is not None:
            self.tokens.append(made)
        elif name in _SUMS and self._patches and self.last is not None and len(shape) == 3:
            many = prod(shape[:2]) >= self.rows * prod(self.grid)
            self._lost |= many and shape[2] == self.last.shape[1]

    def _laid(self, tokens: Tensor) -> tuple[tuple[int, ...], int] | None:
        """The grid of tokens (rows, places, size) or (rows, *grid, size), and how many stand before it."""
        grid = self.grid
        while all(length > 1 for length in grid):
            if tuple(tokens.shape[1:-1]) == grid:
                return grid, 0
            extra = tokens.shape[1] - prod(grid)
            if tokens.dim() == 3 and 0 <= extra <= _EXTRA:
                return grid, extra
            grid = tuple(length // 2 for length in grid)  # a stage may merge neighbouring patches
        return None

    def as_maps(self, tokens: Tensor) -> Tensor:
        """Tokens as maps (rows, size, *grid), without those that stand for no patch."""
        laid = self._laid(tokens)
        assert laid is not None
        grid, extra = laid
        return tokens.flatten(1, -2)[:, extra:].transpose(1, 2).unflatten(2, grid)


def layer_shapes(task: Task) -> dict[str, list[tuple[int, ...]]]:
    """The output shapes of every layer for one row, in the order they ran; asked once, and not counted."""
    found: dict[str, list[tuple[int, ...]]] = task.reference.cached(
        "layer shapes", lambda: task.uncounted(lambda: _ask_shapes(task.reference))
    )
    return found


def _ask_shapes(task: Task) -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {}

    def after(name: str, output: Any) -> None:
        if isinstance(output, Tensor):
            found.setdefault(name, []).append(tuple(output.shape))

    with task.session() as model, _every_layer(task, after):
        call(model, task.inputs[:1], take_side(task.side, slice(0, 1)))
    return found


@contextmanager
def _every_layer(task: Task, after: Callable[[str, Any], None]) -> Iterator[None]:
    """While this is open, `after(name, output)` is called behind each layer."""
    handles = [
        layer.register_forward_hook(lambda _layer, _inputs, output, name=name: after(name, output))
        for name, layer in task.predictor.model.named_modules()
        if not isinstance(layer, torch.jit.ScriptModule)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
    """Whether the model gives other outputs when it is traced."""
    lost: bool
    """Whether its tokens cannot be laid on the grid of its patches."""
    behind: bool
    """Whether tokens of its own stand behind those of its patches."""
    layer: str | None
    """The layer whose output they are, which need not be traced; None if there is none."""


def last_maps(task: Task) -> Place:
    """What one row shows of the model's last maps; asked once, and not counted."""
    found: Place = task.reference.cached("last maps", lambda: task.uncounted(lambda: _ask(task.reference)))
    return found


def _ask(task: Task) -> Place:
    row, side = task.inputs[:1], take_side(task.side, slice(0, 1))
    with task.session() as model:
        with LastMaps(row, spatial_axes(task)) as seen, _every_layer(task, seen.after_layer):
            # by one operation more, which reads what was written in place
            traced = call(model, row, side).clone()
        own = call(model, row, side)
        # unless it answers otherwise whenever it is asked
        astray = not agree(traced, own) and agree(own, call(model, row, side))
    tokens = "the last residual sum of tokens by which patches reach the output"
    words = tokens if seen.transformer else seen.place
    channels = 0 if seen.last is None else seen.last.shape[1]
    layer = None if seen.transformer else seen.layer
    return Place(words, seen.grid, channels, seen.transformer, astray, seen.lost, seen.behind, layer)


@contextmanager
def watched(task: Task, name: str) -> Iterator[list[Tensor]]:
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
