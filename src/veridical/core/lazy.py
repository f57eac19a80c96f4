"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any


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
