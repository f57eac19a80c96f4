"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from veridical.core.names import TABLE


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package whose names are imported on first use.

    Parameters
    ----------
    package : str
        The package's `__name__`.
    homes : mapping of str to str
        The module that defines each name; that module itself where it has nothing of this name.
        Modules of the package need no entry.

    Returns
    -------
    tuple of two callables
        To be assigned to `__getattr__` and `__dir__`.
    """

    def attribute(name: str) -> Any:
        if name.startswith("__"):
            pass
        elif name in homes:
            module = import_module(homes[name])
            found = getattr(module, name, module)
            setattr(sys.modules[package], name, found)
            return found
        elif find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        here = sys.modules[package]
        return sorted({*vars(here), *homes, *(info.name for info in iter_modules(here.__path__))})

    return attribute, names


def public_names(package: str) -> dict[str, str]:
    """The module of each public class and function below a package that only one file has."""
    homes: dict[str, set[str]] = {}
    for module, (_, offered) in TABLE.items():
        if module.startswith(f"{package}."):
            for name in offered.split():
                homes.setdefault(name, set()).add(module)
    return {name: modules.pop() for name, modules in homes.items() if len(modules) == 1}


def modules_registering(homes: Iterable[str], name: str | None = None) -> list[str]:
    """The modules in these packages that register something, or this name."""
    inside = tuple(f"{home}." for home in homes)
    return [
        module
        for module, (registered, _) in TABLE.items()
        if module.startswith(inside) and (name in registered.split() if name else registered)
    ]
