"""Names for explainers and metrics: ours, a user's own, and those other packages offer by entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from veridical.core.lazy import modules_registering
from veridical.errors import InputError, unknown_name, warn, wrong_arguments

T = TypeVar("T")


def made(maker: Callable[..., T], who: str, settings: Mapping[str, Any]) -> T:
    """What a class or factory makes with these settings, or the sentence that lists those it takes."""
    try:
        return maker(**settings)
    except TypeError as error:
        if not settings:
            raise
        raise wrong_arguments(who, inspect.signature(maker), settings, error) from error


class Catalogue(dict[str, str]):
    """Names with one line each; prints as a table, and is a plain mapping otherwise."""

    def __repr__(self) -> str:
        width = max((len(name) for name in self), default=0)
        return "\n".join(f"{name:<{width}}  {line}" for name, line in self.items())


class Registry(Generic[T]):
    """A table from name to the class (or factory) that makes the default object of that name.

    Ours lie in the packages `homes`: the module that `core.names` gives for a name is imported when that
    name is first used, and all of them when names are listed. Those of other packages are entry points of
    `group`.
    """

    def __init__(self, kind: str, group: str, homes: Sequence[str] = ()) -> None:
        self.kind = kind
        self.group = group
        self.homes = tuple(homes)
        self.makers: dict[str, Callable[..., T]] = {}
        self.prefixes: dict[str, Callable[[T], T]] = {}
        self._points: dict[str, EntryPoint] | None = None
        self._all_loaded = False

    def add(self, name: str, maker: Callable[..., T], replace: bool = False) -> None:
        """Register a maker under a name."""
        if not name or ":" in name:
            raise InputError(f"a {self.kind} needs a name without ':', got {name!r}")
        if not maker.__module__.startswith("veridical."):
            self._import(name, self.makers)  # so that a name of ours is found to be taken
        known = self.makers.get(name)
        if known is not None and not replace and _source(known) != _source(maker):
            raise InputError(f"{self.kind} '{name}' is registered already, by {known}; choose another name")
        self.makers[name] = maker

    def add_prefix(self, prefix: str, wrap: Callable[[T], T]) -> None:
        """Let 'prefix:name' stand for the wrapped object of that name."""
        self.prefixes[prefix] = wrap

    def has_prefix(self, name: str) -> bool:
        """Whether a name with a colon begins with a prefix that is known here."""
        return self._find(name.partition(":")[0], self.prefixes)

    def make(self, name: str, **settings: Any) -> T:
        """The object of this name with these settings."""
        prefix, colon, rest = name.partition(":")
        if colon:
            if not self.has_prefix(name):
                self._load_all()
                raise unknown_name(f"{self.kind} prefix", prefix, self.prefixes)
            return self.prefixes[prefix](self.make(rest, **settings))
        return made(self.maker(name), f"{self.kind} '{name}'", settings)

    def maker(self, name: str) -> Callable[..., T]:
        """The class or factory registered under a name."""
        if not self._find(name, self.makers):
            self._load_all()  # so that close names can be suggested
            raise unknown_name(self.kind, name, self.makers)
        return self.makers[name]

    def __iter__(self) -> Iterator[str]:
        self._load_all()
        return iter(sorted(self.makers))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name, self.makers)

    def _find(self, name: str, table: Mapping[str, Any]) -> bool:
        """Whether the table has the name, after the file or entry point that should bring it was loaded."""
        self._import(name, table)
        if name not in table:
            self._load_point(name)
        return name in table

    def _import(self, name: str, table: Mapping[str, Any]) -> None:
        """Import the module of ours that registers a name, unless the table has it."""
        if name not in table:
            for module in modules_registering(self.homes, name):
                import_module(module)

    def _load_all(self) -> None:
        if self._all_loaded:
            return
        for module in modules_registering(self.homes):
            import_module(module)
        for name in self._entry_points():
            self._load_point(name)
        self._all_loaded = True

    def _entry_points(self) -> dict[str, EntryPoint]:
        if self._points is None:
            self._points = {point.name: point for point in entry_points(group=self.group)}
        return self._points

    def _load_point(self, name: str) -> None:
        point = self._entry_points().get(name)
        if point is None or name in self.makers:
            return
        try:
            self.makers[name] = point.load()
        except Exception as error:
            # a broken package must not take away the names of all others
            warn(f"{self.kind} '{name}' of {point.value} could not be loaded: {error!r}")


def _source(maker: Any) -> tuple[str, str]:
    """Where a maker was written: running a notebook cell again defines the same one anew."""
    return maker.__module__, maker.__qualname__
