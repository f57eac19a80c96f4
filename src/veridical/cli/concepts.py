"""Concept methods as they are written in a shell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from veridical.errors import InputError, unknown_name

HELP = "name, name:setting=value,... or the file of a dictionary"


def concepts_of(words: Sequence[str] | None) -> Any:
    """What `vd.audit(concepts=...)` takes: methods with their settings, and dictionaries from files.

    None leaves the choice to the audit, `none` alone judges nothing.
    """
    if words is None:
        return None
    if list(words) == ["none"]:
        return []
    found = [_concept(word) for word in words]
    if any(label for label, _ in found):
        return {label or word: item for word, (label, item) in zip(words, found, strict=True)}
    return [item for _, item in found]


def _concept(word: str) -> tuple[str, Any]:
    """The label of a file, and the method or the dictionary itself."""
    from veridical.concepts.methods import METHODS

    place = Path(word)
    if place.suffix == ".safetensors" or place.is_dir():
        from veridical.dictionaries import load

        return place.stem, load(place)
    name, _, told = word.partition(":")
    if name.lower() not in METHODS:
        raise unknown_name("concept method", name, METHODS)
    method = METHODS[name.lower()]
    settings: dict[str, Any] = {}
    for part in filter(None, told.split(",")):
        setting, _, value = part.partition("=")
        known = [field.name for field in fields(method) if field.init]
        if setting not in known:
            raise unknown_name(f"setting of {name}", setting, known)
        if not value:
            raise InputError(f"{word!r}: {setting} has no value; write {name}:{setting}=5")
        settings[setting] = yaml.safe_load(value)
    return "", method(**settings)
