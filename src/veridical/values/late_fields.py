"""Fields of a frozen dataclass that something happens before: a check, or their very computation.

A field stays where a dataclass puts it; only reading it goes by a property.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type[Any])


def settled_before_reading(*names: str) -> Callable[[C], C]:
    """Class decorator: whoever reads one of these fields settles the object first, if it has `_unchecked`."""

    def reader(name: str) -> Callable[[Any], Any]:
        def read(owner: Any) -> Any:
            if owner.__dict__.get("_unchecked") is not None:
                owner.settle()
            return owner.__dict__[name]

        return read

    return _with_readers({name: reader(name) for name in names})


def computed_when_read(**makers: Callable[[Any], Any]) -> Callable[[C], C]:
    """Class decorator: a field that was not given is computed when it is first read, and kept."""

    def reader(name: str, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def read(owner: Any) -> Any:
            kept = owner.__dict__
            if kept.get(name) is None:
                kept[name] = make(owner)
            return kept[name]

        return read

    return _with_readers({name: reader(name, make) for name, make in makers.items()})


def _with_readers(readers: dict[str, Callable[[Any], Any]]) -> Callable[[C], C]:
    def add(cls: C) -> C:
        for name, read in readers.items():
            setattr(cls, name, property(read, _writer(name)))
        return cls

    return add


def _writer(name: str) -> Callable[[Any, Any], None]:
    def write(owner: Any, value: Any) -> None:
        owner.__dict__[name] = value

    return write
