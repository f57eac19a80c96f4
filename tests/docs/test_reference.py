"""Every function that the reference lists says what it takes: a numpydoc section for its parameters."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def listed() -> Iterator[tuple[str, Any]]:
    for path, members in re.findall(
        r"^::: ([\w.]+)(?:\n    options:\n      members: (.*))?", PAGE.read_text(), re.M
    ):
        try:
            home, names = importlib.import_module(path), []
        except ModuleNotFoundError:
            module, _, name = path.rpartition(".")
            home, names = importlib.import_module(module), [name]
        if not names:
            inside = re.findall(r"\w+", members)
            names = list(home.__all__) if inside == ["true"] else inside
        for name in names:
            yield f"{path}.{name}", getattr(home, name)


def needs_parameters(thing: Any) -> bool:
    """Fields of records are described where they are declared; errors and protocols take none."""
    records = (tuple, Exception)
    if isinstance(thing, type) and (dataclasses.is_dataclass(thing) or issubclass(thing, records)):
        return False
    if getattr(thing, "_is_protocol", False):
        return False
    return callable(thing) and bool(inspect.signature(thing).parameters)


@pytest.mark.parametrize(("name", "thing"), [pytest.param(n, t, id=n) for n, t in listed()])
def test_what_the_reference_lists_describes_its_parameters(name: str, thing: Any) -> None:
    text = inspect.getdoc(thing) or ""
    assert text.split("\n")[0], f"{name} has no docstring"
    if needs_parameters(thing):
        assert "Parameters\n----------" in text or "Parameters are those of" in text, f"{name} describes none"
