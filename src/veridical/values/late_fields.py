"""Fields of a frozen dataclass that something happens before: a check, or their very computation.

A field stays where a dataclass puts it; only reading it goes by a function of the object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type[Any])


def settled_before_reading(*names: str) -> Callable[[C], C]:
    """Class decorator: whoever reads one of these fields settles the object first."""

    def read(name: str, owner: Any) -> Any:
        return owner.settle().__dict__[name]

    return _with_readers(dict.fromkeys(names, read))


def computed_when_read(**makers: Callable[[Any], Any]) -> Callable[[C], C]:
    """Class decorator: a field that was not given is computed when it is first read, and kept."""

    def read(name: str, owner: Any) -> Any:
        kept = owner.__dict__
        if kept.get(name) is None:
            kept[name] = makers[name](owner)
        return kept[name]

    return _with_readers(dict.fromkeys(makers, read))


def _with_readers(readers: dict[str, Callable[[str, Any], Any]]) -> Callable[[C], C]:
    def add(cls: C) -> C:
        for name, read in readers.items():
            setattr(cls, name, _field(name, read))
        return cls

    return add


def _field(name: str, read: Callable[[str, Any], Any]) -> property:
    def write(owner: Any, value: Any) -> None:
        owner.__dict__[name] = value

    return property(lambda owner: read(name, owner), write)
