"""The explainer or metric that a choice stands for, and what identifies it in an address."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, TypeVar

from veridical.api import as_metric
from veridical.core.settings import Settings, holds_code, revive
from veridical.errors import InputError
from veridical.explainers import Explainer, as_explainer
from veridical.explainers.function import FunctionExplainer
from veridical.metrics import AnyMetric
from veridical.study.grid import Choice

T = TypeVar("T", Explainer, AnyMetric)


def make_explainer(choice: Choice, allow_code: bool = False) -> Explainer:
    """The explainer of a choice: registered, a class or object of the user's, or a plain function."""
    settings = _revived(choice.settings)
    if choice.code is None:
        return as_explainer(choice.name, **settings)
    found = imported(choice.code, allow_code)
    if isinstance(found, Explainer) or (isinstance(found, type) and issubclass(found, Explainer)):
        return as_explainer(found, **settings)
    if not callable(found):
        raise InputError(f"{choice.code} is a {type(found).__name__}, not an explainer or a function")
    return FunctionExplainer(functools.partial(found, **settings) if settings else found, choice.label)


def make_metric(choice: Choice, allow_code: bool = False) -> AnyMetric:
    """The metric of a choice: registered, or a class, object or factory of the user's."""
    settings = _revived(choice.settings)
    if choice.code is None:
        return as_metric(choice.name, **settings)
    found = imported(choice.code, allow_code)
    if isinstance(found, AnyMetric) or (isinstance(found, type) and issubclass(found, AnyMetric)):
        return as_metric(found, **settings)
    made = found(**settings) if callable(found) else found
    if not isinstance(made, AnyMetric):
        raise InputError(f"{choice.code} gave a {type(made).__name__}, not a metric")
    return made


def imported(path: str, allow_code: bool) -> Any:
    """What an import path names; importing runs its module, so the user must have allowed it."""
    if not allow_code:
        raise InputError(
            f"'{path}' is code, and importing runs it; allow it with --allow-code if you trust it"
        )
    module, _, attributes = path.partition(":")
    try:
        return functools.reduce(getattr, attributes.split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        raise InputError(f"'{path}' cannot be imported: {error}") from error


@dataclass(frozen=True)
class Identity:
    """What an address says of an explainer or metric; `modules` are the user's own that it needs.

    `cached` is False when a function takes part whose source cannot be found again: nothing would tell that
    it has changed.
    """

    content: Mapping[str, Any]
    modules: tuple[str, ...] = ()
    cached: bool = True


def identify(made: T, choice: Choice) -> Identity:
    """Name, integer version and settings; for code of the user's also the text of its modules.

    A function is known by its import path and settings: as JSON it would be a name only.
    """
    modules = {type(part).__module__ for part in inside(made)}
    if choice.code is not None:
        modules.add(choice.code.partition(":")[0])
    own = sorted(module for module in modules if not module.startswith("veridical."))
    plain = not holds_code(made)
    content: dict[str, Any] = {"settings": made.to_json()} if plain else {}
    if choice.code is not None:
        content |= {"code": choice.code, "given": dict(choice.settings)}
    sources = {module: source_digest(module) for module in own}
    if own:
        content["sources"] = sources
    cached = None not in sources.values() and (plain or choice.code is not None)
    return Identity(content, tuple(own), cached)


def inside(part: Any) -> Iterator[Any]:
    """Some settings and all that lie in their fields: a metric may wrap another, which may hold a fill."""
    yield part
    for field in fields(part):
        for value in _items(getattr(part, field.name)):
            if isinstance(value, Settings):
                yield from inside(value)


def _items(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def source_digest(module: str) -> str | None:
    """A digest of the text of a module, or None where it has none that can be imported again."""
    if module == "__main__":
        return None
    try:
        text = inspect.getsource(sys.modules.get(module) or import_module(module))
    except (OSError, TypeError, ImportError):
        return None
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _revived(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: revive(value) for key, value in settings.items()}
