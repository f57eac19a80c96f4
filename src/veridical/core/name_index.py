"""Where a name is written: read off the source files, so that asking for one name imports one file.

>>> declaring("veridical.metrics", "pixel_flipping")
['veridical.metrics.faithfulness.pixel_flipping']
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

# what a file offers to importers: the classes, functions and constants at its top level
_OFFERED = re.compile(r"^(?:class|def) ([A-Za-z]\w*)|^([A-Z]\w*)(?::[^=\n]+)? = ", re.M)
# `name: ClassVar[str] = "..."` in a class, and a prefix as in `registry.add_prefix("inverse", ...)`
_DECLARED = re.compile(r"^    name\b[^=\n]*= *[\"']([^\"'\n]+)[\"']|^[\w.]*add_\w+\([\"'](\w+)[\"']", re.M)
# what makes these known once the file is imported
_REGISTERS = re.compile(r"^@[\w.]*(?:register|revivable)\b|^[\w.]*add_\w+\(", re.M)


@cache
def sources(package: str) -> dict[str, str | None]:
    """The source of every module below a package, None where there is none to read; nothing is imported."""
    spec = find_spec(package)
    return {} if spec is None else _below(spec)


def _below(package: ModuleSpec) -> dict[str, str | None]:
    out: dict[str, str | None] = {}
    for info in iter_modules(package.submodule_search_locations, f"{package.name}."):
        spec = info.module_finder.find_spec(info.name, None)
        if spec is None:
            continue
        out[spec.name] = getattr(spec.loader, "get_source", lambda _: None)(spec.name)
        if info.ispkg:
            out |= _below(spec)
    return out


@cache
def registering(package: str) -> dict[str, frozenset[str]]:
    """The modules below a package that register something, with the names they declare."""
    return {
        module: frozenset(one or other for one, other in _DECLARED.findall(text or ""))
        for module, text in sources(package).items()
        if text is None or _REGISTERS.search(text)
    }


def declaring(package: str, name: str) -> list[str]:
    """The modules below a package that register something and declare this name: one, as a rule."""
    return [module for module, names in registering(package).items() if name in names]


def load(homes: Iterable[str], name: str, table: Mapping[str, Any]) -> None:
    """Import the files in these packages that declare a name, until the table has it."""
    for home in homes:
        if name not in table:
            for module in declaring(home, name):
                import_module(module)


@cache
def offering(package: str) -> dict[str, str]:
    """The module of each public class, function and constant below a package that only one file has."""
    homes: dict[str, set[str]] = {}
    for module, text in sources(package).items():
        for one, other in _OFFERED.findall(text or ""):
            homes.setdefault(one or other, set()).add(module)
    return {name: modules.pop() for name, modules in homes.items() if len(modules) == 1}


def names_on_demand(
    package: str, homes: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`: its modules, and the names in them, imported when asked for.

    `homes` says which module has which name; without it, the files below the package are read for that.
    """

    def table() -> Mapping[str, str]:
        return offering(package) if homes is None else homes

    def attribute(name: str) -> Any:
        if not name.startswith("__"):
            if homes is not None and name in homes:
                return _kept(package, name, getattr(import_module(homes[name]), name))
            # modules before what lies in them: they import each other by these names
            if find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")
            if name in table():
                return _kept(package, name, getattr(import_module(table()[name]), name))
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        here = sys.modules[package]
        return sorted({*vars(here), *table(), *(info.name for info in iter_modules(here.__path__))})

    return attribute, names


def _kept(package: str, name: str, found: Any) -> Any:
    setattr(sys.modules[package], name, found)
    return found
