"""Names for explainers and metrics: ours, a user's own, and those other packages offer by entry point."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from veridical.errors import InputError, VeridicalWarning, unknown_name

T = TypeVar("T")


class Catalogue(dict[str, str]):
    """Names with one line each; prints as a table, and is a plain mapping otherwise."""

    def __repr__(self) -> str:
        width = max((len(name) for name in self), default=0)
        return "\n".join(f"{name:<{width}}  {line}" for name, line in self.items())


class Registry(Generic[T]):
    """A table from name to the class (or factory) that makes the default object of that name.

    Ours are in the modules `homes`, which are imported when a name is first asked for.
    """

    def __init__(self, kind: str, group: str, homes: Sequence[str] = ()) -> None:
        self.kind = kind
        self.group = group
        self.homes = tuple(homes)
        self._makers: dict[str, Callable[..., T]] = {}
        self._prefixes: dict[str, Callable[[T], T]] = {}
        self._searched = False

    def add(self, name: str, maker: Callable[..., T], replace: bool = False) -> None:
        """Register a maker under a name."""
        if not name or ":" in name:
            raise InputError(f"a {self.kind} needs a name without ':', got {name!r}")
        if not maker.__module__.startswith("veridical."):
            self._load_ours()  # so that a name of ours is found to be taken
        known = self._makers.get(name)
        if known is not None and not replace and _source(known) != _source(maker):
            raise InputError(f"{self.kind} '{name}' is registered already, by {known}; choose another name")
        self._makers[name] = maker

    def add_prefix(self, prefix: str, wrap: Callable[[T], T]) -> None:
        """Let 'prefix:name' stand for the wrapped object of that name."""
        self._prefixes[prefix] = wrap

    def make(self, name: str, **settings: Any) -> T:
        """The object of this name with these settings."""
        self._search()
        prefix, colon, rest = name.partition(":")
        if colon:
            if prefix not in self._prefixes:
                raise unknown_name(f"{self.kind} prefix", prefix, self._prefixes)
            return self._prefixes[prefix](self.make(rest, **settings))
        if name not in self._makers:
            raise unknown_name(self.kind, name, self._makers)
        try:
            return self._makers[name](**settings)
        except TypeError as error:
            if settings:
                raise InputError(f"{self.kind} '{name}' does not take {settings}: {error}") from error
            raise

    def maker(self, name: str) -> Callable[..., T]:
        """The class or factory registered under a name."""
        self._search()
        if name not in self._makers:
            raise unknown_name(self.kind, name, self._makers)
        return self._makers[name]

    def __iter__(self) -> Iterator[str]:
        self._search()
        return iter(sorted(self._makers))

    def __contains__(self, name: object) -> bool:
        self._search()
        return name in self._makers

    def _load_ours(self) -> None:
        for home in self.homes:
            import_module(home)

    def _search(self) -> None:
        if self._searched:
            return
        self._searched = True
        self._load_ours()
        for point in entry_points(group=self.group):
            if point.name not in self._makers:
                try:
                    self._makers[point.name] = point.load()
                except Exception as error:
                    # a broken package must not take away the names of all others
                    warnings.warn(
                        f"{self.kind} '{point.name}' of {point.value} could not be loaded: {error!r}",
                        VeridicalWarning,
                        stacklevel=3,
                    )


def _source(maker: Any) -> tuple[str, str]:
    """Where a maker was written: running a notebook cell again defines the same one anew."""
    return maker.__module__, maker.__qualname__
