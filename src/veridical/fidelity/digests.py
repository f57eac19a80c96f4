"""What stands for a model, for rows and for a function in the address of an artefact."""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.errors import InputError

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, enum.Enum)
_MOST_THINGS = 10_000
"""Things looked at behind a function before it counts as unreadable."""


def row_digests(rows: Tensor) -> Tensor:
    """A digest (rows, 12) of every row; the same numbers in another precision or place are the same row."""
    table = rows.detach().cpu()
    if table.is_floating_point():
        table = table.to(torch.float32) + 0.0  # no negative zeros
    flat = table.contiguous().reshape(len(rows), -1).numpy()
    found = [hashlib.blake2b(row.tobytes(), digest_size=12).digest() for row in flat]
    return torch.frombuffer(bytearray(b"".join(found)), dtype=torch.uint8).view(-1, 12)


def state_digest(model: nn.Module) -> str:
    """A digest of a model's class, layout and every number in its parameters and buffers."""
    digest = hashlib.blake2b(repr((type(model).__qualname__, repr(model))).encode(), digest_size=16)
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in sorted(held.items()):
        digest.update(name.encode())
        digest.update(tensor_bytes(value))
    return digest.hexdigest()


def tensor_bytes(value: Tensor) -> bytes:
    """Shape, dtype and content of a tensor as bytes."""
    array = value.detach().cpu().contiguous()
    return (
        f"{tuple(array.shape)}{array.dtype}".encode() + array.reshape(-1).view(torch.uint8).numpy().tobytes()
    )


def described(thing: Callable[..., Any] | None, what: str, key: str | None = None) -> str:
    """A text that stands for a function: its code and all it reads, or its name and code beside the `key`.

    What a function closes over, its defaults and the globals it names are followed into the user's own code;
    installed packages stand by their names. Anything that cannot be read so is refused: the caller then says
    by a key when two functions are the same.
    """
    if thing is None:
        return "default"
    if key is not None:
        code = getattr(thing, "__code__", None)
        return f"{_name(thing)} {'' if code is None else list(_code(code))!r}"
    texts: list[str] = []
    _look(thing, what, texts, {})
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=12).hexdigest()


def _look(thing: Any, what: str, texts: list[str], seen: dict[int, Any]) -> None:
    """Write down a thing and all that lies behind it, each once."""

    def add(text: str, *inside: Any) -> None:
        texts.append(text)
        for other in inside:
            _look(other, what, texts, seen)

    if isinstance(thing, _PLAIN):
        return add(f"{type(thing).__name__} {thing!r}")
    if id(thing) in seen:
        return add("again")
    seen[id(thing)] = thing  # held, so that nothing new takes its number
    if len(seen) > _MOST_THINGS:
        raise InputError(f"the {what} reads too much to be told apart by its content; give key='...'")
    if isinstance(thing, Tensor):
        return add(hashlib.blake2b(tensor_bytes(thing), digest_size=12).hexdigest())
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        return _look(torch.as_tensor(thing), what, texts, seen)
    if isinstance(thing, np.generic):
        return add(repr(thing))
    if isinstance(thing, ModuleType):
        return add(f"module {thing.__name__}")
    if isinstance(thing, Mapping):
        return add(type(thing).__name__, *(part for pair in thing.items() for part in pair))
    if isinstance(thing, list | tuple):
        return add(f"{type(thing).__name__} {len(thing)}", *thing)
    if isinstance(thing, set | frozenset):
        return add(f"set {sorted(map(repr, thing))}")
    if isinstance(thing, functools.partial):
        return add("partial", thing.func, thing.args, thing.keywords)
    if isinstance(thing, MethodType):
        return add("method", thing.__func__, thing.__self__)
    if _installed(getattr(thing, "__module__", None)) and isinstance(thing, type | BuiltinFunctionType):
        return add(_name(thing))
    code = getattr(thing, "__code__", None)
    if code is not None:
        if _installed(thing.__module__) and not thing.__closure__:
            return add(_name(thing))
        held = [cell.cell_contents for cell in thing.__closure__ or () if cell != type(cell)()]
        names = sorted({name for part in _codes(code) for name in part.co_names})
        read = {name: thing.__globals__[name] for name in names if name in thing.__globals__}
        return add(f"{list(_code(code))!r}", held, thing.__defaults__, thing.__kwdefaults__, read)
    if isinstance(thing, type):
        own = {n: v for n, v in vars(thing).items() if not (n.startswith("__") and n != "__call__")}
        functions = {n: v for n, v in own.items() if hasattr(v, "__code__") or isinstance(v, _PLAIN)}
        return add(_name(thing), functions)
    if callable(thing) and not hasattr(thing, "__dict__"):
        return add(_name(thing))
    if hasattr(thing, "__dict__"):
        state = vars(thing)
        if isinstance(thing, nn.Module):
            plain = {n: v for n, v in state.items() if isinstance(v, _PLAIN)}
            state = {"": state_digest(thing), **plain}
        return add(_name(type(thing)), type(thing), state)
    raise InputError(
        f"the {what} holds a {type(thing).__name__} whose content cannot be read, so a changed one would "
        "find an old artefact; give key='...', another one whenever what it holds changes"
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions written inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _code(code: CodeType) -> Iterator[str]:
    for part in _codes(code):
        constants = [c for c in part.co_consts if not isinstance(c, CodeType)]
        yield repr((part.co_code, constants, part.co_names))


def _name(thing: Any) -> str:
    made = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(made, '__module__', '?')}:{made.__qualname__}"


def _installed(module: str | None) -> bool:
    """Whether code comes from the standard library or a package, which a version and not its text names."""
    name = module or "builtins"
    if name.partition(".")[0] == "veridical" or name in sys.builtin_module_names:
        return True
    files = [getattr(sys.modules.get(part), "__file__", None) for part in (name, name.partition(".")[0])]
    file = files[0] or files[1] or ""
    return "site-packages" in file or file.startswith(sysconfig.get_paths()["stdlib"])
