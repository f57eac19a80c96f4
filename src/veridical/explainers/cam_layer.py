"""Where class activation maps look when no layer is named: what the model computes last on a grid of places.

In a convolutional network that is the last value on the grid of its last convolution: behind the norm, the
activation, the residual sum and the concatenation that follow it, also where those are no layers. In a vision
transformer (one convolution, which cuts patches) it is the last residual sum of tokens through which patches
still reach the answer: behind it only the class token counts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from veridical.explainers.graph.follow import Follower
from veridical.explainers.graph.operations import tensors

_CONVOLUTIONS = frozenset(f"conv{kind}{axes}d" for kind in ("", "_transpose") for axes in (1, 2, 3))
_SUMS = frozenset({"add", "iadd", "radd"})
_JOINS = frozenset({"cat", "concat", "concatenate"})
_EXTRA = 2
"""The most class and distillation tokens that stand before those of the patches."""


class _Operation:
    """An operation of a run that is repeated, and whether the graph begins with what it answers."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func, self.begins = func, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = self.func(*args, **kwargs)
        if self.begins:
            for made in tensors(value):
                if made.is_floating_point() and not made.requires_grad:
                    made.requires_grad_(True)
        return value


class LastMaps(Follower):
    """Notes while a model runs which values lie on a grid of `axes` axes.

    A repeated run is given an input without a gradient: its graph begins where the last maps are made.
    """

    def __init__(self, x: Tensor, axes: int) -> None:
        super().__init__(x)
        self.axes, self.rows = axes, len(x)
        self.grid: tuple[int, ...] = ()
        self.place = ""
        self.last: Tensor | None = None
        self.tokens: list[Tensor] = []
        self._convolutions, self._patches, self._lost = 0, False, False
        self.behind = False
        """Whether tokens of the model's own stand behind those of the patches."""
        self._makers: WeakIdKeyDictionary = WeakIdKeyDictionary({x: None})

    @property
    def decides(self) -> tuple[Any, ...]:
        return (self.axes,)

    @property
    def transformer(self) -> bool:
        """Whether the only convolution cuts the input into patches, and tokens follow."""
        return self._convolutions == 1 and self._patches and bool(self.tokens)

    @property
    def lost(self) -> bool:
        """Whether tokens follow the patches that cannot be laid on their grid: registers, or rows behind."""
        return self._convolutions == 1 and self._patches and self._lost

    @property
    def found(self) -> list[Tensor]:
        """The values of which one is looked at: the last maps, or the tokens of a transformer."""
        return self.tokens if self.transformer else [] if self.last is None else [self.last]

    def __enter__(self) -> Any:
        if self._with_gradients:
            # by which is known what depends on the input behind what cannot be followed
            self.x.requires_grad_(True)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def answered(self, answer: Tensor) -> Tensor:
        answer = self._current(answer)
        if self.plan is not None:
            for value in self.found:
                maker = self._makers.get(value)
                if maker is None or not value.requires_grad:
                    self.plan.stop("the last maps are the input, or cut off from it")
                else:
                    maker.begins = True
            facts = (self.grid, self.place, self._convolutions, self._patches)
            self.do(_know, self, self.last, self.tokens, facts)
            self.plan.finish(answer)
        return answer

    def _look_for_unseen(self, given: list[Tensor]) -> None:
        # a gradient passes what cannot be followed
        self.carried.add(v for v in given if v.requires_grad and not v.is_leaf)

    def _follow(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, carrying: bool) -> Any:
        if self.plan is not None:
            if torch.is_grad_enabled() != self._with_gradients:
                self.plan.stop("the model switches gradients on or off")
            func = _Operation(func)
        value = self.do(func, *args, **kwargs)
        for made in tensors(value):
            if made.is_floating_point():
                self.carried.add([made])
                if self.plan is not None:
                    # one that answers what it was given, such as a dropout at rest, has not made it
                    self._makers.setdefault(made, func)
                if name not in ("detach", "data"):  # no gradient comes back to a copy that is cut off
                    self._look(name, made, args, kwargs)
        return value

    def _look(self, name: str, made: Tensor, args: Any, kwargs: Any) -> None:
        shape = tuple(made.shape)
        if name in _JOINS and self._patches and self.last is not None and shape[2:] == self.last.shape[1:2]:
            parts = args[0] if args else kwargs["tensors"]
            # a token for each row is laid beside the patches: made of the model's own weights alone
            self.behind |= parts[-1] not in self.carried and parts[-1].shape[1] <= _EXTRA
        fits = len(shape) == 2 + self.axes and shape[0] == self.rows and prod(shape[2:]) > 1
        if name in _CONVOLUTIONS and fits:
            self.grid, self.tokens = shape[2:], []
            self._convolutions += 1
            kernel = (args[1] if len(args) > 1 else kwargs["weight"]).shape[2:]
            stride = args[3] if len(args) > 3 else kwargs.get("stride", 1)
            stride = (stride,) * self.axes if isinstance(stride, int) else tuple(stride)
            self._patches = tuple(kernel) == stride and max(kernel) > 1
        if fits and shape[2:] == self.grid:
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


def _know(run: LastMaps, last: Tensor | None, tokens: list[Tensor], facts: tuple[Any, ...]) -> None:
    """At the end of a repeated run: what following it would have found."""
    run.last, run.tokens = last, tokens
    run.grid, run.place, run._convolutions, run._patches = facts
