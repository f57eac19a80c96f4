"""Results that are checked when they are first read.

On a GPU, where to look is to wait, a result is made unchecked. Until it is settled it belongs to a subclass
that settles it before one of its fields is read; settled, it is a plain object of its class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def unsettled(cls: type[Any], *names: str) -> type[Any]:
    """The subclass of results of which nobody has read these fields yet."""

    def reduce(owner: Any) -> Any:
        return owner.settle().__reduce_ex__(2)

    fields = {name: property(_reader(name), _writer(name)) for name in names}
    return type(f"Unsettled{cls.__name__}", (cls,), {"__doc__": cls.__doc__, "__reduce__": reduce, **fields})


def become(result: Any, cls: type[Any]) -> None:
    """Make a result, though frozen, one of this class."""
    object.__setattr__(result, "__class__", cls)


def _reader(name: str) -> Callable[[Any], Any]:
    return lambda owner: owner.settle().__dict__[name]


def _writer(name: str) -> Callable[[Any, Any], None]:
    return lambda owner, value: owner.__dict__.update({name: value})
