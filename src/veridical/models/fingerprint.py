"""Noticing that a model is no longer the one it was.

Compared are, by identity and version, every parameter and buffer; by value, every plain attribute of every
module (numbers, strings, lists, dictionaries, configuration objects, arrays), the hooks on it, and the plain
values, tensors and modules that its `forward` (or a plain function used as a model) reads from globals and
closures. `WeightSamples` adds numbers read from the weights themselves, because a write through `.data`
leaves no other trace. Whoever keeps facts keeps what they name alive, too (`Walk.held`): the address of what
is gone is soon given to something else.

What cannot be known: values that functions called further down read from globals, lists and dictionaries
that code of installed packages reads from its globals and closures, files, environment
variables, random numbers, state inside compiled extensions, and a write through `.data` that spares all of
the few numbers sampled from a tensor. After such a change make the task again.
"""

from __future__ import annotations

import dis
import logging
import random
import types
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.errors import ModelChangedError, VeridicalWarning
from veridical.models.cost import Meter

Fact = tuple[Any, ...]
LateLook = tuple[torch.device, Callable[[], None]]
"""What raises if something is wrong, and the device that it would wait for."""
PLAIN = (bool, int, str, bytes, type(None), complex, torch.dtype, torch.device, torch.Size, type)
COMMON = frozenset({bool, int, str, type(None)})
"""What most attributes are, told by one look."""
BARE = len(nn.Module().__dict__)
INTERNAL = frozenset({*nn.Module().__dict__, "_compiled_call_impl"})
OPAQUE = (types.ModuleType, logging.Logger, logging.Handler, random.Random, Meter)
INSIDE = ("torch._", "torch.fx.", "torch.jit.")
"""What changes by mere use, or because of others, and says nothing about a model."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
DEEPEST, LONGEST = 6, 4096
"""How far nested attributes are followed, and how many items of one are looked at."""
SAMPLED = 16
"""Numbers read of each weight."""


@dataclass
class Walk:
    """What one look at a model has met."""

    followed: set[int] = field(default_factory=set)
    """Objects whose contents stand in the facts: each is looked into once."""
    held: list[Any] = field(default_factory=list)
    """Objects known by their address."""

    def identity(self, value: Any) -> int:
        """The address of an object, for as long as this is kept."""
        self.held.append(value)
        return id(value)


def modules(model: nn.Module) -> Iterator[nn.Module]:
    """Every module once, in the order of registration; without the names that torch's own walk makes."""
    ahead, seen = [model], {id(model)}
    while ahead:
        module = ahead.pop()
        yield module
        for child in reversed(list(module._modules.values())):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                ahead.append(child)


def facts(model: nn.Module, walk: Walk | None = None) -> list[Fact]:
    """(module number, name, value) for everything by which a change of the model can be noticed, in no order.

    Of one model they come again as they came, unless attributes were taken away and set again.
    """
    out: list[Fact] = []
    walk = Walk() if walk is None else walk
    hold = walk.held.append
    for place, module in enumerate(modules(model)):
        own = module.__dict__
        walk.followed.add(id(module))
        hold(module)
        for table in (module._parameters, module._buffers):
            for name, value in table.items():
                if value is not None:
                    hold(value)
                    out.append((place, name, id(value), version(value)))
        for hooks in HOOKS:
            if own.get(hooks):
                out.append((place, hooks, *map(walk.identity, own[hooks].values())))
        for name in own.keys() - INTERNAL if len(own) > BARE else ():
            value = own[name]
            out.append((place, name, value if type(value) in COMMON else plain(value, walk)))
        if not type(module).__module__.startswith("torch."):
            out.append((place, "forward", read_by(module.forward, walk)))
    return out


def version(tensor: Tensor) -> int:
    """How often a tensor was written to; torch does not count for tensors made in inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def plain(value: Any, walk: Walk, depth: int = 0) -> Any:
    """A value that is equal again just if the attribute still says the same."""
    kind: type = type(value)
    if kind in COMMON or (kind is tuple and COMMON.issuperset(map(type, value))):
        return value
    if id(value) in walk.followed:  # first: to ask what kind a configuration is takes it long
        return type(value), walk.identity(value)
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, float | np.generic):
        return repr(value)  # NaN equals itself
    if isinstance(value, Tensor):
        return "tensor", walk.identity(value), version(value)
    if isinstance(value, np.ndarray):
        return "array", value.shape, value.dtype.str, hash(_some(value).tobytes())
    if depth >= DEEPEST or isinstance(value, OPAQUE):
        return type(value), walk.identity(value)
    deeper = depth + 1
    if isinstance(value, nn.Module):
        return "module", tuple(sorted(facts(value, walk), key=itemgetter(0, 1)))
    if (getattr(value, "__module__", None) or "").startswith(INSIDE):
        return type(value), walk.identity(value)
    if isinstance(value, list | tuple | set | frozenset | deque):
        items = list(value)[:LONGEST]
        return type(value), len(value), tuple([plain(item, walk, deeper) for item in items])
    if isinstance(value, dict):
        pairs = list(value.items())[:LONGEST]
        return len(value), tuple([(repr(k), plain(v, walk, deeper)) for k, v in pairs])
    if isinstance(value, types.FunctionType | types.MethodType):
        return read_by(value, walk, depth)
    if isinstance(value, partial):
        return plain([value.func, value.args, value.keywords], walk, depth)
    walk.followed.add(id(value))
    about = type(value), walk.identity(value)
    if hasattr(value, "iloc"):  # a data frame: what is in its dictionary changes by mere use
        return *about, value.shape, hash(str(value.iloc[:LONGEST].to_numpy().tolist()))
    slots = {name: getattr(value, name, None) for name in _slots(kind)}
    return *about, plain({**getattr(value, "__dict__", {}), **slots}, walk, depth)


@lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[str, ...]:
    """Attributes that objects of a class hold outside a dictionary."""
    found = [getattr(base, "__slots__", ()) for base in kind.__mro__ if "__slots__" in vars(base)]
    names = [name for own in found for name in ([own] if isinstance(own, str) else own)]
    return tuple(name for name in names if not name.startswith("__"))


def read_by(function: Any, walk: Walk, depth: int = 0) -> Any:
    """What a function can be seen to read: its owner, its closure, and globals that it names itself."""
    bound = getattr(function, "__self__", None)
    code = getattr(function, "__code__", None) or getattr(
        getattr(function, "__func__", None), "__code__", None
    )
    if code is None:
        return type(function), walk.identity(function)
    inner = getattr(function, "__func__", function)
    cells = [cell.cell_contents for cell in inner.__closure__ or () if _filled(cell)]
    named = (inner.__globals__.get(name) for name in _globals_read(code))
    single = (float, np.generic, np.ndarray, Tensor, nn.Module, *PLAIN[:6])
    if _installed(code.co_filename):
        # tables and wrapped functions of a package serve all its models, and change by the use of others
        cells = [value for value in cells if isinstance(value, single)]
        wanted: tuple[type, ...] = single
    else:
        wanted = (*single, list, dict)
    read = [value for value in named if isinstance(value, wanted) and not isinstance(value, type)]
    owner = [] if bound is None or id(bound) in walk.followed else [bound]
    return walk.identity(code), tuple([plain(value, walk, depth + 1) for value in [*owner, *cells, *read]])


@lru_cache(maxsize=1024)
def _installed(file: str) -> bool:
    """Whether code came with an installed package."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


@lru_cache(maxsize=1024)
def _globals_read(code: types.CodeType) -> tuple[str, ...]:
    return tuple({step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"})


def _some(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.hasobject:
        return np.asarray([id(item) for item in array.flat[:LONGEST]])
    step = max(1, array.size // LONGEST)
    return np.ascontiguousarray(array.reshape(-1)[::step])


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (reading raises where a name has no value yet)
    except ValueError:
        return False
    return True


class WeightSamples:
    """Numbers read of each parameter and buffer that is no scratch, one tensor per device and dtype.

    Views of the weights are kept, so that reading again is one joining per dtype.
    """

    def __init__(self, model: nn.Module, scratch: frozenset[tuple[int, str]] = frozenset()) -> None:
        self._tensors = [
            value
            for place, module in enumerate(modules(model))
            for name, value in (*module._parameters.items(), *module._buffers.items())
            if (place, name) not in scratch and value is not None
            if value.numel() and value.layout == torch.strided
        ]
        self._look()
        self._first = self._read()

    def _look(self) -> None:
        self._places = _places(self._tensors)
        self._views: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for value in self._tensors:
            self._views.setdefault((value.device, value.dtype), []).append(_few(value.detach()))

    def _read(self) -> list[Tensor]:
        return [torch.cat(few) for few in self._views.values()]

    def pairs(self) -> list[tuple[Tensor, Tensor]] | None:
        """Numbers as first read and as they are now; None where a tensor has another dtype or device."""
        if self._places is None or self._places != _places(self._tensors):
            before = list(self._views)
            self._look()
            if before != list(self._views):
                return None
        return list(zip(self._first, self._read(), strict=True))


def _differ(before: Tensor, now: Tensor) -> bool:
    """Whether any number is another one; NaN is the same as NaN. Looks, and so waits for a GPU."""
    if before.shape != now.shape:
        return True
    return not torch.equal(before.double().nan_to_num(), now.double().nan_to_num())


def _few(value: Tensor) -> Tensor:
    """Some of a tensor's numbers, a view of them where it lies in one piece."""
    if value.is_quantized:
        value = value.int_repr()
    flat = torch.view_as_real(value.resolve_conj()).flatten() if value.is_complex() else value.flatten()
    return flat[:: -(-flat.numel() // SAMPLED)]


def _places(tensors: list[Tensor]) -> list[int] | None:
    """Where the numbers lie, if all lie in one piece, so that views of them show every write."""
    if all(value.is_contiguous() for value in tensors):
        return [value.data_ptr() for value in tensors]
    return None


class Guard:
    """What a model was when a task was made of it; refuses when it is no longer that."""

    def __init__(self, model: nn.Module, weighed: bool, scratch: frozenset[tuple[int, str]]) -> None:
        self._model = model
        self._look()
        self.scratch = scratch - set(_tensor_facts(model))
        """Attributes that a forward pass writes itself, which say nothing about the model."""
        self._samples = WeightSamples(model, self.scratch) if weighed else None
        self._trained, self._warned = trains(model), False

    def _look(self) -> None:
        walk = Walk()
        self._facts = facts(self._model, walk)
        # so that no other object gets the address of one that is known by it
        self._held = walk.held

    def learn_scratch(self, before: list[Fact], after: list[Fact]) -> None:
        """Leave out what a forward pass has changed: facts of a copy before it and after."""
        known = {fact[:2]: fact for fact in before}
        changed = {fact[:2] for fact in after if known.get(fact[:2]) != fact}
        self.scratch |= {(place, str(name)) for place, name in changed} - set(_tensor_facts(self._model))

    def check(self) -> None:
        """Raise if the model has changed since this was made, as far as it shows without reading weights."""
        now = facts(self._model)
        if now != self._facts:
            changed = _difference(self._facts, now, self.scratch)
            if changed is not None:
                raise ModelChangedError(_changed(self._model, changed))
            self._look()
        if trains(self._model) and not self._trained and not self._warned:
            self._warned = True
            warnings.warn(
                "the model was put into training mode after the task was made; it is asked in eval mode, as "
                "before",
                VeridicalWarning,
                stacklevel=4,
            )

    def check_weights(self, at_once: Collection[str]) -> list[LateLook]:
        """Raise if some numbers of the weights are others; looks that would wait are handed back instead."""
        pairs = [] if self._samples is None else self._samples.pairs()
        if pairs is None:
            raise ModelChangedError(_changed(self._model, None))
        later: list[LateLook] = []
        for before, now in pairs:
            if before.device.type in at_once:
                self._compare(before, now)
            else:
                later.append((before.device, partial(self._compare, before, now)))
        return later

    def _compare(self, before: Tensor, now: Tensor) -> None:
        if _differ(before, now):
            raise ModelChangedError(_changed(self._model, None))


def trains(module: nn.Module) -> bool:
    """Whether a module is in training mode; a frozen script has none."""
    return bool(getattr(module, "training", False))


def _tensor_facts(model: nn.Module) -> Iterator[Fact]:
    for place, module in enumerate(modules(model)):
        for name in (*module._parameters.keys(), *module._buffers.keys()):
            yield place, name


def _difference(before: list[Fact], now: list[Fact], scratch: frozenset[tuple[int, str]]) -> Fact | None:
    """The first fact that is not as it was, of those that a forward pass does not write itself."""
    known, found = ({fact[:2]: fact for fact in each} for each in (before, now))
    for name in sorted(known.keys() | found.keys()):
        if known.get(name) != found.get(name) and name not in scratch:
            return name
    return None


def _changed(model: nn.Module, fact: Fact | None) -> str:
    what = "weights were written to"
    if fact is not None:
        names = {id(module): name for name, module in model.named_modules()}
        place = next((m for i, m in enumerate(modules(model)) if i == fact[0]), model)
        path = names.get(id(place), "")
        what = f"'{path + '.' if path else ''}{fact[1]}' is not what it was"
    return (
        f"the model has changed since this task was made ({what}), so what the task knows no longer holds; "
        "make the task again, or go on with task.refreshed()"
    )
