"""What inside a model can be switched off, and what takes its place.

Units are attention heads, channels, blocks, feed-forward layers or atoms of a dictionary. What "off" means is
zero, the mean over reference inputs, or the value in a paired input.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Change = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Zeroed:
    """A unit that is off is zero."""


@dataclass(frozen=True, eq=False)
class MeanOver:
    """A unit that is off has its mean over reference inputs (rows of the task's kind, or a task of them)."""

    inputs: Any
    """The reference inputs: a tensor of rows, or a task."""
    side: Any = ()
    """Their side inputs, as the task has them."""


@dataclass(frozen=True, eq=False)
class Counterfactual:
    """A unit that is off has the value it has in a paired input, one for each sample of the task."""

    inputs: Any
    """The paired inputs, in the order of the samples: a tensor, or a task that has the same shapes."""


@dataclass(frozen=True)
class Site:
    """One layer whose state is switched in parts: `count` units from number `first` on."""

    layer: str
    """Name of the layer in the model."""
    first: int
    """The number of its first unit."""
    count: int
    """How many units it has."""
    axis: int = -1
    """The axis of its state along which units lie."""
    reads_input: bool = False
    """Whether the state is what goes into the layer, not what comes out."""
    added: bool = False
    """Whether the state is what the layer adds to its input, or to an argument called residual."""
    whole: bool = False
    """Whether the whole state is one unit."""
    dictionary: Any = None
    """Encodes the state as codes, which are the units."""
    chosen: tuple[int, ...] = ()
    """Which of the codes are units."""

    def laid(self, gates: Tensor, state: Tensor) -> Tensor:
        """Gates (rows, units) over a state, to multiply it with."""
        shape = [len(state)] + [1] * (state.dim() - 1)
        if self.whole:
            return gates.reshape(shape)
        axis = self.axis % state.dim()
        if self.chosen:
            full = gates.new_ones(len(gates), state.shape[axis])
            full[:, list(self.chosen)] = gates
            gates = full
        shape[axis] = state.shape[axis]
        return gates.repeat_interleave(state.shape[axis] // gates.shape[1], 1).reshape(shape)

    def total_of(self, state: Tensor, seen: Tensor | None) -> tuple[Tensor, int | Tensor]:
        """The sum of a state over rows and places, and of how many: padding (not `seen`) has no part in it.

        It is 1 long along every axis but that of the units' values.
        """
        kept = self.axis % state.dim()
        others = [axis for axis in range(state.dim()) if axis != kept]
        if seen is None or state.dim() < 3 or state.shape[:2] != seen.shape:
            return state.sum(others, keepdim=True), state.numel() // state.shape[kept]
        laid = seen.reshape(*seen.shape, *[1] * (state.dim() - 2))
        further = state[0, 0].numel() // (state.shape[kept] if kept > 1 else 1)
        return torch.where(laid, state, 0.0).sum(others, keepdim=True), seen.sum() * further

    def hooked(self, model: nn.Module, change: Change) -> list[Any]:
        """Let `change` see, and replace, the state whenever the layer is called."""
        layer = model.get_submodule(self.layer)
        if self.reads_input:

            def before(_m: nn.Module, given: tuple[Any, ...]) -> Any:
                new = change(given[0])
                return None if new is None else (new, *given[1:])

            return [layer.register_forward_pre_hook(before)]

        def after(_m: nn.Module, given: tuple[Any, ...], named: dict[str, Any], made: Any) -> Any:
            out = made[0] if isinstance(made, tuple) else made
            new = self._changed(layer, given, named, out, change)
            if new is None:
                return None
            return (new, *made[1:]) if isinstance(made, tuple) else new

        return [layer.register_forward_hook(after, with_kwargs=True)]

    def _changed(
        self, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], out: Tensor, change: Change
    ) -> Tensor | None:
        if self.added:
            added = out - _added_to(layer, given, named)
            new = change(added)
            # so that nothing is rounded where all is on
            return None if new is None else out + (new - added)
        if self.dictionary is None:
            return change(out)
        own: Any = (
            self.dictionary.to(out.device) if isinstance(self.dictionary, nn.Module) else self.dictionary
        )
        codes = own.encode(out)
        new = change(codes)
        # what the dictionary does not tell stays as it is
        return None if new is None else out + (own.decode(new) - own.decode(codes))


def takes_residual(layer: nn.Module) -> bool:
    """Whether a layer is handed what it adds to, as an argument apart from its input."""
    return "residual" in inspect.signature(layer.forward).parameters


def _added_to(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    place = 0
    if takes_residual(layer):
        place = list(inspect.signature(layer.forward).parameters).index("residual")
        named = {"residual": named.get("residual")}
    found = given[place] if place < len(given) else None
    return found if found is not None else next(v for v in named.values() if isinstance(v, Tensor))
