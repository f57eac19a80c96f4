"""Noticing that a model is no longer the one it was.

Compared are, by identity and version, every parameter and buffer; by value, every plain attribute of every
module (numbers, strings, lists, dictionaries, configuration objects, arrays), the hooks on it, and the plain
values, tensors and modules that its `forward` (or a plain function used as a model) reads from globals and
closures. `samples` adds numbers read from the weights themselves, because a write through `.data` leaves no
other trace.

What cannot be known: values that functions called further down read from globals, files, environment
variables, random numbers, state inside compiled extensions, and a write through `.data` that spares all of
the few numbers sampled from a tensor. After such a change make the task again.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Fact = tuple[Any, ...]
PLAIN = (bool, int, str, bytes, type(None), complex, torch.dtype, torch.device, torch.Size, type)
INTERNAL = frozenset(nn.Module().__dict__)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
DEEPEST, LONGEST = 4, 4096
"""How far nested attributes are followed, and how many items of one are looked at."""
SAMPLED = 16
"""Numbers read of each tensor."""


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


def facts(model: nn.Module) -> list[Fact]:
    """(module number, name, value) for everything by which a change of the model can be noticed."""
    out: list[Fact] = []
    followed: set[int] = set()
    for place, module in enumerate(modules(model)):
        own = module.__dict__
        followed.add(id(module))
        for table in (module._parameters, module._buffers):
            for name, value in table.items():
                if value is not None:
                    out.append((place, name, id(value), version(value)))
        for hooks in HOOKS:
            if own.get(hooks):
                out.append((place, hooks, *map(id, own[hooks].values())))
        for name in own.keys() - INTERNAL if len(own) > len(INTERNAL) else ():
            out.append((place, name, plain(own[name], followed)))
        if not type(module).__module__.startswith("torch."):
            out.append((place, "forward", read_by(module.forward, followed)))
    out.sort(key=lambda fact: fact[:2])
    return out


def version(tensor: Tensor) -> int:
    """How often a tensor was written to; torch does not count for tensors made in inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def plain(value: Any, followed: set[int], depth: int = 0) -> Any:
    """A value that is equal again just if the attribute still says the same."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, float | np.generic):
        return repr(value)  # NaN equals itself
    if isinstance(value, Tensor):
        return "tensor", id(value), version(value)
    if isinstance(value, np.ndarray):
        return "array", value.shape, value.dtype.str, hash(_some(value).tobytes())
    if id(value) in followed or depth >= DEEPEST:
        return type(value), id(value)
    if isinstance(value, nn.Module):
        followed.add(id(value))
        return "module", tuple(facts(value))
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)[:LONGEST]
        return type(value), len(value), tuple(plain(item, followed, depth + 1) for item in items)
    if isinstance(value, dict):
        pairs = list(value.items())[:LONGEST]
        return len(value), tuple((repr(k), plain(v, followed, depth + 1)) for k, v in pairs)
    if isinstance(value, types.FunctionType | types.MethodType):
        return read_by(value, followed, depth)
    followed.add(id(value))
    if hasattr(value, "__dict__") and not isinstance(value, types.ModuleType):
        return type(value), id(value), plain(vars(value), followed, depth + 1)
    return type(value), id(value)


def read_by(function: Any, followed: set[int], depth: int = 0) -> Any:
    """What a function can be seen to read: its owner, its closure, and globals that it names itself."""
    bound = getattr(function, "__self__", None)
    code = getattr(function, "__code__", None) or getattr(
        getattr(function, "__func__", None), "__code__", None
    )
    if code is None:
        return type(function), id(function)
    inner = getattr(function, "__func__", function)
    cells = [cell.cell_contents for cell in inner.__closure__ or () if _filled(cell)]
    named = (inner.__globals__.get(name) for name in _globals_read(code))
    wanted = (float, np.generic, np.ndarray, Tensor, nn.Module, list, dict, *PLAIN[:6])
    read = [value for value in named if isinstance(value, wanted) and not isinstance(value, type)]
    owner = [] if bound is None or id(bound) in followed else [bound]
    return id(code), tuple(plain(value, followed, depth + 1) for value in [*owner, *cells, *read])


@lru_cache(maxsize=1024)
def _globals_read(code: types.CodeType) -> tuple[str, ...]:
    return tuple({step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"})


def samples(model: nn.Module) -> list[Tensor]:
    """A few numbers of every parameter and buffer, in one tensor per device."""
    found: dict[torch.device, list[Tensor]] = {}
    for module in modules(model):
        for value in (*module._parameters.values(), *module._buffers.values()):
            if value is not None and value.numel() and value.layout == torch.strided:
                flat = value.detach().flatten()
                few = flat[:: -(-flat.numel() // SAMPLED)]
                found.setdefault(value.device, []).append(few if few.is_complex() else few.double())
    return [
        torch.cat(
            [torch.view_as_real(few).flatten() if few.is_complex() else few for few in own]
        ).nan_to_num()
        for own in found.values()
    ]


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
