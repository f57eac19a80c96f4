"""Hyper-parameters: frozen dataclasses that hold what they declare, go to JSON and come back equal."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields
from importlib import import_module
from numbers import Integral, Real
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from veridical.core.allowed import LARGEST, Within
from veridical.errors import InputError, VeridicalError, wrong_arguments

F = TypeVar("F", bound=Callable[..., Any])


def mismatch(value: Any, declared: Any) -> str | None:
    """What a value should have been, where it is not what was declared; None if it is."""
    origin, inner = get_origin(declared), get_args(declared)
    if declared is Any:
        return None
    if origin is Annotated:
        bounds = [bound for bound in inner[1:] if isinstance(bound, Within)]
        reason = mismatch(value, inner[0])
        if reason is None and all(value in bound for bound in bounds):
            return None
        return " ".join([_WORDS.get(inner[0], reason or ""), *map(str, bounds)])
    if origin is Literal:
        fits = isinstance(value, str | int) and value in inner
        return None if fits else f"one of {', '.join(map(repr, inner))}"
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        reasons = []
        for one in inner:
            reason = mismatch(value, one)
            if reason is None:
                return None
            reasons.append(reason)
        return " or ".join(dict.fromkeys(reasons))
    if origin is tuple and inner[-1] is Ellipsis:
        fits = isinstance(value, tuple | list) and all(mismatch(one, inner[0]) is None for one in value)
        return None if fits else f"a tuple, and each part of it {mismatch(None, inner[0]) or 'anything'}"
    if origin is Sequence:
        if _each(value, inner[0]):
            return None
        return f"several, and each {mismatch(None, inner[0]) or 'anything'}"
    if declared in _FITS:
        return None if _FITS[declared](value) else _WORDS[declared]
    if declared in (None, NoneType):
        return None if value is None else "None"
    declared = origin or declared
    if isinstance(declared, type) and not getattr(declared, "_is_protocol", False):
        made = getattr(declared, "made_by", "")
        return None if isinstance(value, declared) else f"of type {declared.__name__}{made and f' ({made})'}"
    return None


def _each(value: Any, declared: Any) -> bool:
    """Whether these are several, also as an array, and each what was declared; a text is one."""
    if isinstance(value, str | bytes | Mapping | Set) or not hasattr(value, "__len__"):
        return False
    try:
        return all(mismatch(one, declared) is None for one in value)
    except TypeError:  # an array of no dimension has no length
        return False


def _whole(value: Any) -> bool:
    whole = isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
    return whole and abs(int(value)) <= LARGEST


def _real(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool | np.bool_) and math.isfinite(value)
    except OverflowError:
        return False


_FITS: dict[Any, Callable[[Any], bool]] = {
    int: _whole,
    float: _real,
    bool: lambda value: isinstance(value, bool | np.bool_),
    str: lambda value: isinstance(value, str),
}
_WORDS = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a text"}


def then_checked(own: Callable[..., None]) -> Callable[..., None]:
    """A class's own check, which says best what it minds, and after it that of the declared types."""

    @functools.wraps(own)
    def check(self: Any, *given: Any) -> None:
        try:
            own(self, *given)
        except VeridicalError:
            raise
        except Exception:
            check_settings(self)
            raise
        check_settings(self)

    return check


def check_settings(settings: Any) -> None:
    """Refuse a field that is not of the type, or beyond the bounds, that its class declares."""
    for name, declared in _declared(settings.__class__).items():
        value = getattr(settings, name, None)
        if isinstance(value, np.generic):
            # numpy's narrow integers would overflow where Python's do not
            value = value.item()
            object.__setattr__(settings, name, value)
        reason = mismatch(value, declared)
        # what a class can be made of, a fill of its name or of a number, is made here
        makers = [kind for kind in (declared, *get_args(declared)) if hasattr(kind, "from_plain")]
        if (
            reason is not None
            and makers
            and isinstance(value, str | int | float)
            and not isinstance(value, bool)
        ):
            object.__setattr__(settings, name, makers[0].from_plain(value))
            continue
        if reason is not None:
            raise InputError(f"{type(settings).__name__}: {name} is {reason}, got {value!r:.80}")


def checked(function: F) -> F:
    """Let a function refuse arguments that are not what it declares, as settings are refused."""
    signature = inspect.signature(function)
    who = function.__qualname__.removesuffix(".__init__")

    @functools.cache
    def declared() -> dict[str, Any]:
        given = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
        bare = SimpleNamespace(__annotations__=given)
        return get_type_hints(bare, function.__globals__, include_extras=True)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*args, **named)
        except TypeError as error:
            raise wrong_arguments(who, signature, named, error) from None
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if name in declared() and kind in (kind.POSITIONAL_OR_KEYWORD, kind.KEYWORD_ONLY):
                wanted = declared()[name]
                if hasattr(value, "tolist") and any(
                    get_origin(w) is Sequence for w in (wanted, *get_args(wanted))
                ):
                    bound.arguments[name] = value = value.tolist()  # an array has no truth of its own
                reason = mismatch(value, wanted)
                if reason is not None:
                    raise InputError(f"{who}: {name} is {reason}, got {value!r:.80}")
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


@functools.cache
def _declared(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def taken_from(owner: str, name: str) -> property:
    """A fact that something has from what it is made of: the attribute `name` of its field `owner`."""
    return property(lambda self: getattr(getattr(self, owner), name))


class Settings:
    """Mixin of frozen dataclasses with a registered `name`: `to_json` and `from_json`."""

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        own = cls.__dict__.get("__post_init__")
        if own is not None:
            cls.__post_init__ = then_checked(own)

    __post_init__ = check_settings

    def to_json(self) -> dict[str, Any]:
        """Name, version and hyper-parameters as plain data."""
        out: dict[str, Any] = {"name": self.name, "version": self.version}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            out[field.name] = value.to_json() if isinstance(value, Settings) else _plain(value)
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The object that `to_json` described; settings inside it are found by their class' own table."""
        data = {key: value for key, value in data.items() if key not in ("name", "version")}
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        unknown = sorted(set(data) - known)
        if unknown:
            raise InputError(f"{cls.__name__} has no setting {', '.join(unknown)}; it has {sorted(known)}")
        return cls(**{key: revive(value) for key, value in data.items()})


def holds_code(value: Any) -> bool:
    """Whether a function lies in these settings: in JSON only its name stands for it."""
    if isinstance(value, Settings):
        return any(holds_code(getattr(value, field.name)) for field in fields(value))  # type: ignore[arg-type]
    if isinstance(value, tuple | list):
        return any(map(holds_code, value))
    return callable(value)


S = TypeVar("S", bound=Settings)
_TABLE: dict[str, type[Settings]] = {}
_MODULES = ("veridical.perturb.fills", "veridical.fidelity.artefact")
"""Where settings lie that are found by name inside others."""


def revivable(cls: type[S]) -> type[S]:
    """Let settings of this class be found by name when they lie inside others."""
    _TABLE[cls.name] = cls
    return cls


def revive(value: Any) -> Any:
    """Settings from their JSON, wherever they lie in a value; lists become tuples."""
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        for module in _MODULES if value["name"] not in _TABLE else ():
            import_module(module)
        if value["name"] in _TABLE:
            return _TABLE[value["name"]].from_json(value)
    return tuple(revive(v) for v in value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [v.to_json() if isinstance(v, Settings) else _plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if callable(value):
        return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', repr(value))}"
    return value
