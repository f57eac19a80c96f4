"""A followed run written down once and repeated: what the rules do, without the search for them.

To look at every operation costs more Python than the operation itself. A plan holds for one model and the
shapes of what it is given. None is made where the model reads values or switches gradients off on its way,
where shapes follow values, or where a tensor comes from nowhere that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from veridical.explainers.graph.tape import Key, Tape, taped

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class Inner:
    """Base of what steps give to one another and the model never sees."""

    __slots__ = ()


class Slot:
    """Where an argument comes from: the answer of an earlier step, or a part of it."""

    __slots__ = ("at", "path")

    def __init__(self, at: int, path: tuple[int, ...] = ()) -> None:
        self.at, self.path = at, path

    @property
    def key(self) -> Key:
        """The name under which a tape knows what arrives there."""
        return (self.at, *self.path) if self.path else self.at

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


@dataclass(slots=True)
class _Step:
    """A function with slots for what it is given, the slot of its answer, and what is not read after it."""

    function: Callable[..., Any]
    given: list[Any]
    named: dict[str, Any]
    at: int
    ways: tuple[tuple[Key, ...], tuple[Key | None, ...]] | None
    """Where relevance arrives and where it goes to; None if the step has no way back of its own."""
    done: list[int] = field(default_factory=list)

    @property
    def plain(self) -> list[tuple[int, int]]:
        """Places to fill from slots."""
        return [(i, arg.at) for i, arg in enumerate(self.given) if type(arg) is Slot and not arg.path]

    @property
    def nested(self) -> list[tuple[int, Any]]:
        """Places to fill from parts of slots, or by nests of them."""
        found = [(i, arg) for i, arg in enumerate(self.given) if type(arg) in (Slot, _Nest)]
        return [(i, arg) for i, arg in found if type(arg) is _Nest or arg.path]


class Plan:
    """The steps of one run, each a function with slots for what it is given; slot 0 is the run itself."""

    def __init__(self, run: Any, inputs: list[Tensor], model: nn.Module) -> None:
        self.why_not: str | None = None
        self.finished = False
        self._taped: bool = run.taped
        self._steps: list[_Step] = []
        self._ready: list[tuple[Any, ...]] = []
        self._most = 0
        self._slots: dict[int, Slot] = {id(run): Slot(0)}
        self._held: list[Any] = [run]  # while it is written, so that no two things have one address
        self._inputs = len(inputs)
        self._weights: dict[int, Tensor] = {id(t): t for t in (*model.parameters(), *model.buffers())}
        self._read: dict[int, tuple[Tensor, int]] = {}
        self._known, self._places = list[Tensor](), list[int]()
        tables = ("_forward_pre_hooks", "_forward_hooks")
        self._tables = [getattr(part, name) for part in model.modules() for name in tables]
        self._hooks = self._hooked()
        self._last: dict[int, int] = {}
        self._answer = Slot(0)
        for at, value in enumerate(inputs):
            self._know(value, Slot(1 + at))

    # --- written ----------------------------------------------------------------------------------------

    def note(
        self,
        step: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        value: Any,
        inputs: Sequence[Tensor] | None = None,
    ) -> None:
        """Write down a step, what it answered, and what it knows the way back to."""
        if self.why_not is not None:
            return
        given = [self._given(arg) for arg in args]
        named = {name: self._given(arg) for name, arg in kwargs.items()}
        sources = [self._slots.get(id(t)) if t.requires_grad else None for t in inputs or ()]
        at, outs = 1 + self._inputs + len(self._steps), list[Key]()
        for path, part in _leaves(value):
            if isinstance(part, Tensor | Inner):
                slot = Slot(at, path)
                self._know(part, slot)
                outs.append(slot.key)
            elif part is not None:
                self.stop(f"an operation answers a {type(part).__name__}")
        ins = tuple(None if slot is None else slot.key for slot in sources)
        self._steps.append(_Step(step, given, named, at, None if inputs is None else (tuple(outs), ins)))

    def alias(self, value: Tensor, of: Tensor) -> Tensor:
        """Know a weight by another name."""
        if self.why_not is None and id(of) in self._weights:
            self._weights[id(value)] = of
            self._held.append(value)
        return value

    def weight(self, value: Tensor) -> Tensor | None:
        """The model's own parameter or buffer that a tensor is, if it is one."""
        return self._weights.get(id(value))

    def stop(self, why: str) -> None:
        """Let there be no plan, and none again."""
        self.why_not, self.finished = why, False
        self._held, self._slots, self._steps, self._ready = [], {}, [], []

    def finish(self, answer: Tensor) -> None:
        """The model's answer is known: from here on the plan can be run."""
        slot = self._given(answer)
        if not isinstance(slot, Slot):
            return self.stop("the answer was not seen")
        if self.why_not is not None:
            return None
        self._answer = slot
        self._last.pop(slot.at, None)
        kept = [s for s in self._steps if s.ways is None or s.at in self._last or s.at == slot.at]
        for at, reader in self._last.items():
            # what only steps read that nobody reads goes with the last one before them
            last = max((s for s in kept if s.at <= reader), key=lambda s: s.at)
            last.done.append(at)
        self._ready = [
            (s.function, s.at, s.given, s.plain, s.nested, s.named, tuple(s.done), s.ways) for s in kept
        ]
        self._most = 1 + max(s.at for s in kept)
        self._known, self._places = [t for t, _ in self._read.values()], [at for _, at in self._read.values()]
        self._held, self._slots, self._steps, self._weights, self.finished = [], {}, [], {}, True

    def _know(self, value: Any, slot: Slot) -> None:
        self._slots[id(value)] = slot
        self._held.append(value)

    def _given(self, value: Any) -> Any:
        slot = self._slots.get(id(value))
        if slot is not None:
            if slot.at > self._inputs:
                self._last[slot.at] = 1 + self._inputs + len(self._steps)
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
        """Whether there is a plan, weights that it reads lie where they lay, and hooks are the same."""
        if not self.finished or self._hooked() != self._hooks:
            return False
        return [t.data_ptr() for t in self._known] == self._places

    def _hooked(self) -> list[int]:
        """The numbers of all hooks that change what layers are given or answer; none has that of another."""
        return [number for table in self._tables for number in table]

    def __call__(self, run: Any, inputs: list[Tensor]) -> Any:
        """Take all steps for another run."""
        if not self._taped:
            return self.forward([run, *inputs])
        return taped(self, run, inputs)

    def forward(self, values: list[Any], tape: Tape | None = None) -> Any:
        """Take all steps, and lay on the tape how each goes back."""
        values += [None] * (self._most - len(values))
        for function, at, given, plain, nested, named, done, ways in self._ready:
            args = given.copy()
            for place, source in plain:
                args[place] = values[source]
            for place, part in nested:
                args[place] = part.read(values)
            if named:
                by_name = {k: v.read(values) if type(v) in (Slot, _Nest) else v for k, v in named.items()}
                made = function(*args, **by_name)
            else:
                made = function(*args)
            if tape is not None and ways is not None:
                tape.append((*ways, made.back))
                made = made.value
            values[at] = made
            for source in done:
                values[source] = None
        return self._answer.read(values)

    @property
    def ends(self) -> tuple[Key, Key]:
        """Where relevance arrives first, and where the input lies."""
        return self._answer.key, 1


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
