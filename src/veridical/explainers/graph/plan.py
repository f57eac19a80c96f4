"""A followed run written down once and repeated: what the rules do, without the search for them.

To look at every operation costs more Python than the operation itself. A plan holds for one model and the
shapes of what it is given. None is made where the model reads values or switches gradients off on its way,
where shapes follow values, or where a tensor comes from nowhere that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
_UNSTEADY = """item tolist numpy nonzero argwhere unique unique_consecutive masked_select bincount is_nonzero
equal allclose rand_like randn_like"""
UNSTEADY = frozenset(_UNSTEADY.split())
"""Operations whose answer has no fixed shape, or is no tensor."""


class Slot:
    """Where an argument comes from: the answer of an earlier step, or a part of it."""

    __slots__ = ("at", "path")

    def __init__(self, at: int, path: tuple[int, ...] = ()) -> None:
        self.at, self.path = at, path

    def read(self, values: list[Any]) -> Any:
        value = values[self.at]
        for part in self.path:
            value = value[part]
        return value


class _Nest:
    """A tuple, list or dictionary that holds slots."""

    __slots__ = ("build", "parts")

    def __init__(self, build: Callable[[list[Any]], Any], parts: list[Any]) -> None:
        self.build, self.parts = build, parts

    def read(self, values: list[Any]) -> Any:
        return self.build(_filled(self.parts, values))


def _filled(parts: list[Any], values: list[Any]) -> list[Any]:
    return [part.read(values) if type(part) in (Slot, _Nest) else part for part in parts]


class Plan:
    """The steps of one run, each a function with slots for what it is given; slot 0 is the run itself."""

    def __init__(self, run: Any, inputs: list[Tensor], model: nn.Module) -> None:
        self.why_not: str | None = None
        self.finished = False
        self._steps: list[tuple[Callable[..., Any], list[Any], dict[str, Any], list[int]]] = []
        self._slots: dict[int, Slot] = {id(run): Slot(0)}
        self._held: list[Any] = [run]  # while it is written, so that no two things have one address
        self._inputs = len(inputs)
        self._weights: dict[int, Tensor] = {id(t): t for t in (*model.parameters(), *model.buffers())}
        self._read: dict[int, tuple[Tensor, int]] = {}
        self._last: dict[int, int] = {}
        self._answer = Slot(0)
        for at, value in enumerate(inputs):
            self._know(value, Slot(1 + at))

    # --- written ----------------------------------------------------------------------------------------

    def note(
        self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
    ) -> None:
        """Write down a step and what it answered."""
        if self.why_not is not None:
            return
        given = [self._given(arg) for arg in args]
        named = {name: self._given(arg) for name, arg in kwargs.items()}
        self._steps.append((step, given, named, []))
        for path, part in _leaves(value):
            if isinstance(part, Tensor):
                self._know(part, Slot(self._inputs + len(self._steps), path))
            elif part is not None:
                self.stop(f"an operation answers a {type(part).__name__}")

    def alias(self, value: Tensor, of: Tensor) -> Tensor:
        """Know a weight by another name."""
        if self.why_not is None and id(of) in self._weights:
            self._weights[id(value)] = of
            self._held.append(value)
        return value

    def stop(self, why: str) -> None:
        """Let there be no plan."""
        self.why_not = why
        self._held, self._slots, self._steps = [], {}, []

    def finish(self, answer: Tensor) -> None:
        """The model's answer is known: from here on the plan can be run."""
        slot = self._given(answer)
        if not isinstance(slot, Slot):
            return self.stop("the answer was not seen")
        if self.why_not is not None:
            return None
        self._answer = slot
        self._last.pop(slot.at, None)
        for at, step in self._last.items():
            self._steps[step][3].append(at)
        self._held, self._slots, self._weights, self.finished = [], {}, {}, True

    def _know(self, value: Tensor, slot: Slot) -> None:
        self._slots[id(value)] = slot
        self._held.append(value)

    def _given(self, value: Any) -> Any:
        slot = self._slots.get(id(value))
        if slot is not None:
            if slot.at > self._inputs:
                self._last[slot.at] = len(self._steps)
            return slot
        if isinstance(value, Tensor):
            if id(value) not in self._weights:
                self.stop("a tensor comes from nowhere that was seen")
            else:
                weight = self._weights[id(value)]
                self._read[id(weight)] = (weight, weight.data_ptr())
            return value
        if type(value) in (tuple, list):
            parts = [self._given(part) for part in value]
            return _Nest(type(value), parts) if _any_slot(parts) else value
        if type(value) is dict:
            keys, parts = list(value), [self._given(part) for part in value.values()]
            return _Nest(lambda p: dict(zip(keys, p, strict=True)), parts) if _any_slot(parts) else value
        if any(isinstance(part, Tensor) for _, part in _leaves(value)):
            self.stop(f"a {type(value).__name__} holds tensors")
        return value

    # --- run --------------------------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether there is a plan, and the weights that it reads lie where they lay."""
        return self.finished and all(t.data_ptr() == at for t, at in self._read.values())

    def __call__(self, run: Any, inputs: list[Tensor]) -> Any:
        """Take all steps for another run."""
        values: list[Any] = [run, *inputs]
        for step, args, kwargs, done in self._steps:
            given = [arg.read(values) if type(arg) in (Slot, _Nest) else arg for arg in args]
            if kwargs:
                named = {k: v.read(values) if type(v) in (Slot, _Nest) else v for k, v in kwargs.items()}
                values.append(step(*given, **named))
            else:
                values.append(step(*given))
            for at in done:
                values[at] = None
        return self._answer.read(values)


def _any_slot(parts: list[Any]) -> bool:
    return any(type(part) in (Slot, _Nest) for part in parts)


def _leaves(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    if isinstance(value, tuple | list):
        for at, part in enumerate(value):
            yield from _leaves(part, (*path, at))
    else:
        yield path, value


def fits(value: Any) -> Any:
    """What two calls must have in common to share a plan: shapes, layouts and all that is no tensor."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, tuple | list):
        return type(value), tuple(fits(part) for part in value)
    if isinstance(value, dict):
        return tuple((name, fits(part)) for name, part in value.items())
    return value if isinstance(value, PLAIN) else object()
