"""Where class activation maps look when no layer is named: what the model computes last on a grid of places.

In a convolutional network that is the last value on the grid of its last convolution: behind the norm, the
activation, the residual sum and the concatenation that follow it, also where those are no layers. In a vision
transformer (one convolution, which cuts patches) it is the last residual sum of tokens through which patches
still reach the answer: behind it only the class token counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from veridical.explainers.graph.follow import Follower
from veridical.explainers.graph.operations import tensors

_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"})
_SUMS = frozenset({"add", "iadd", "radd"})
_EXTRA = 2
"""The most class and distillation tokens that stand before those of the patches."""


class LastMaps(Follower):
    """Notes while a model runs which values lie on a grid of `axes` axes."""

    def __init__(self, x: Tensor, axes: int) -> None:
        super().__init__(x)
        self.axes, self.rows = axes, len(x)
        self.grid: tuple[int, ...] = ()
        self.place = ""
        self.last: Tensor | None = None
        self.tokens: list[Tensor] = []
        self._convolutions, self._patches = 0, False

    @property
    def transformer(self) -> bool:
        """Whether the only convolution cuts the input into patches, and tokens follow."""
        return self._convolutions == 1 and self._patches and bool(self.tokens)

    def _look_for_unseen(self, given: list[Tensor]) -> None:
        # a gradient passes what cannot be followed
        self.carried.add(v for v in given if v.requires_grad and not v.is_leaf)

    def _follow(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, carrying: bool) -> Any:
        value = func(*args, **kwargs)
        for made in tensors(value):
            if made.is_floating_point():
                self.carried.add([made])
                self._look(name, made, args, kwargs)
        return value

    def _look(self, name: str, made: Tensor, args: Any, kwargs: Any) -> None:
        shape = tuple(made.shape)
        fits = len(shape) == 2 + self.axes and shape[0] == self.rows and made[0, 0].numel() > 1
        if name in _CONVOLUTIONS and fits:
            self.grid, self.tokens = shape[2:], []
            self._convolutions += 1
            kernel, stride = args[1].shape[2:], args[3] if len(args) > 3 else kwargs.get("stride", 1)
            stride = (stride,) * self.axes if isinstance(stride, int) else tuple(stride)
            self._patches = tuple(kernel) == stride and max(kernel) > 1
        if fits and shape[2:] == self.grid:
            self.last, self.place = made, f"{name}, {shape[1]} x {' x '.join(map(str, self.grid))}"
        elif name in _SUMS and self.grid and shape[0] == self.rows and self._laid(made) is not None:
            self.tokens.append(made)

    def _laid(self, tokens: Tensor) -> tuple[tuple[int, ...], int] | None:
        """The grid of tokens (rows, places, size) or (rows, *grid, size), and how many stand before it."""
        grid = self.grid
        while all(length > 1 for length in grid):
            if tuple(tokens.shape[1:-1]) == grid:
                return grid, 0
            count = 1
            for length in grid:
                count *= length
            extra = tokens.shape[1] - count
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
