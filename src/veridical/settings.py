"""Hyper-parameters as plain data: frozen dataclasses that go to JSON and come back equal."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from veridical import name_index
from veridical.allowed import check_settings as check_settings
from veridical.allowed import checked as checked
from veridical.allowed import then_checked
from veridical.errors import InputError


class Settings:
    """Mixin of frozen dataclasses with a registered `name`: `to_json` and `from_json`."""

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        own = cls.__dict__.get("__post_init__")
        if own is not None:
            cls.__post_init__ = then_checked(own)

    __post_init__ = check_settings

    def to_json(self) -> dict[str, Any]:
        """Name, version and hyper-parameters as plain data."""
        out: dict[str, Any] = {"name": self.name, "version": self.version}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            out[field.name] = value.to_json() if isinstance(value, Settings) else _plain(value)
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The object that `to_json` described; settings inside it are found by their class' own table."""
        data = {key: value for key, value in data.items() if key not in ("name", "version")}
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        unknown = sorted(set(data) - known)
        if unknown:
            raise InputError(f"{cls.__name__} has no setting {', '.join(unknown)}; it has {sorted(known)}")
        return cls(**{key: revive(value) for key, value in data.items()})


def holds_code(value: Any) -> bool:
    """Whether a function lies in these settings: in JSON only its name stands for it."""
    if isinstance(value, Settings):
        return any(holds_code(getattr(value, field.name)) for field in fields(value))  # type: ignore[arg-type]
    if isinstance(value, tuple | list):
        return any(map(holds_code, value))
    return callable(value)


S = TypeVar("S", bound=Settings)
_TABLE: dict[str, type[Settings]] = {}
_HOMES = ("veridical.masking", "veridical.fidelity")


def revivable(cls: type[S]) -> type[S]:
    """Let settings of this class be found by name when they lie inside others."""
    _TABLE[cls.name] = cls
    return cls


def revive(value: Any) -> Any:
    """Settings from their JSON, wherever they lie in a value; lists become tuples."""
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        name_index.load(_HOMES, value["name"], _TABLE)
        if value["name"] in _TABLE:
            return _TABLE[value["name"]].from_json(value)
    return tuple(revive(v) for v in value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [v.to_json() if isinstance(v, Settings) else _plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if callable(value):
        return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', repr(value))}"
    return value
