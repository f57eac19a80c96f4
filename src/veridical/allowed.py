"""What a setting or an argument may be: its type and its bounds, declared with it and checked here.

    draws: Count = 50
    keep: Annotated[float, Within(0, 1, without=(0, 1))] = 0.5

A value that does not fit is refused in one form: "Rise: draws is a whole number from 2 to 10000000, got 1".
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from veridical.errors import InputError, VeridicalError

F = TypeVar("F", bound=Callable[..., Any])

MANY = 10**7
"""More draws, steps or rows than anybody can wait for."""
LARGE = 1e38
"""What float32 holds, rounded down: settings meet tensors of that type."""
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Within:
    """Bounds of a number, both allowed but for those in `without`."""

    least: float
    most: float
    without: tuple[float, ...] = ()

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and value not in self.without

    def __str__(self) -> str:
        least, most = f"{self.least:.10g}", f"{self.most:.10g}"
        inside = [f"{gap:.10g}" for gap in self.without if self.least < gap < self.most]
        if len(inside) == len(self.without):
            said = f"from {least} to {most}"
        else:
            low = f"above {least}" if self.least in self.without else f"at least {least}"
            said = f"{low} and " + (f"below {most}" if self.most in self.without else f"at most {most}")
        return said + (f", but not {', '.join(inside)}" if inside else "")


Count = Annotated[int, Within(1, MANY)]
"""How many there are: one at least."""
Index = Annotated[int, Within(0, LARGEST)]
"""Which one, counted from 0; also how many where there may be none."""
Share = Annotated[float, Within(0, 1)]
"""A part of a whole."""
PartOf = Annotated[float, Within(0, 1, without=(0,))]
"""A part of a whole that is not empty."""
Between = Annotated[float, Within(0, 1, without=(0, 1))]
"""A part of a whole that is neither empty nor all of it."""
Positive = Annotated[float, Within(0, LARGE, without=(0,))]
"""A size, rate or width."""
NotNegative = Annotated[float, Within(0, LARGE)]
"""A size that may be nothing."""
Value = Annotated[float, Within(-LARGE, LARGE)]
"""Any number that a tensor can hold."""


def why_not(value: Any, declared: Any) -> str | None:
    """What a value should have been, where it is not what was declared; None if it is."""
    origin, inner = get_origin(declared), get_args(declared)
    if declared is Any:
        return None
    if origin is Annotated:
        bounds = [bound for bound in inner[1:] if isinstance(bound, Within)]
        reason = why_not(value, inner[0])
        if reason is None and all(value in bound for bound in bounds):
            return None
        return " ".join([_WORDS.get(inner[0], reason or ""), *map(str, bounds)])
    if origin is Literal:
        fits = isinstance(value, str | int) and value in inner
        return None if fits else f"one of {', '.join(map(repr, inner))}"
    if origin in (Union, UnionType):
        reasons = []
        for one in inner:
            reason = why_not(value, one)
            if reason is None:
                return None
            reasons.append(reason)
        return " or ".join(dict.fromkeys(reasons))
    if origin is tuple and inner[-1] is Ellipsis:
        fits = isinstance(value, tuple | list) and all(why_not(one, inner[0]) is None for one in value)
        return None if fits else f"a tuple, and each part of it {why_not(None, inner[0]) or 'anything'}"
    if origin is Sequence:
        if _each(value, inner[0]):
            return None
        return f"several, and each {why_not(None, inner[0]) or 'anything'}"
    if declared in _FITS:
        return None if _FITS[declared](value) else _WORDS[declared]
    if declared is None or declared is type(None):
        return None if value is None else "None"
    declared = origin or declared
    if isinstance(declared, type) and not getattr(declared, "_is_protocol", False):
        return None if isinstance(value, declared) else f"of type {declared.__name__}"
    return None


def _each(value: Any, declared: Any) -> bool:
    """Whether these are several, also as an array, and each what was declared; a text is one."""
    if isinstance(value, str | bytes | Mapping | Set) or not hasattr(value, "__len__"):
        return False
    try:
        return all(why_not(one, declared) is None for one in value)
    except TypeError:  # an array of no dimension has a length it cannot tell
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
_WORDS = {
    int: "a whole number",
    float: "a finite number",
    bool: "True or False",
    str: "a text",
}


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
        reason = why_not(value, declared)
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
        for name, value in signature.bind(*args, **named).arguments.items():
            kind = signature.parameters[name].kind
            if name in declared() and kind in (kind.POSITIONAL_OR_KEYWORD, kind.KEYWORD_ONLY):
                reason = why_not(value, declared()[name])
                if reason is not None:
                    raise InputError(f"{who}: {name} is {reason}, got {value!r:.80}")
        return function(*args, **named)

    return call  # type: ignore[return-value]


@functools.cache
def _declared(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}
