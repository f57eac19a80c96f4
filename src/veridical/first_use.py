"""Parts of a package that are loaded when one of their names is first asked for: importing takes its time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def on_first_use(
    package: str, parts: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`: what `parts` holds, by module, without loading it yet.

    A module stands for itself and for the names given with it; a module given with `"*"` for all in its
    `__all__`.
    """
    homes = {name: part for part, names in parts.items() for name in names if name != "*"}
    whole = [part for part, names in parts.items() if "*" in names]

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        if name in parts or find_spec(f"{package}.{name}") is not None:
            # before anything else is loaded: the parts themselves import each other by these names
            return import_module(f"{package}.{name}")
        for part in whole:
            module = import_module(f"{package}.{part}")
            if name in module.__all__:
                return getattr(module, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def attribute(name: str) -> Any:
        found = find(name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        every = {name for part in whole for name in import_module(f"{package}.{part}").__all__}
        return sorted({*vars(sys.modules[package]), *parts, *homes, *every})

    return attribute, names
