"""Which column of a table holds the true classes and which the texts; a guess only where one fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from veridical.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

LABEL_NAMES = ("label", "labels", "target", "class", "y")
TEXT_NAMES = ("text", "sentence", "review", "content", "document")


def label_column(frame: pd.DataFrame, asked: str | None, features: Iterable[Any] | None = None) -> Any:
    """The column of the true classes: the one asked for, else the only one that can be it, else None.

    `features` are the columns the model takes: what is called label among them is no label, and a single
    column beyond them is one.
    """
    columns = list(frame.columns)
    if asked is not None:
        if asked not in columns:
            raise InputError(f"there is no column '{asked}'; the table has {_listed(columns)}")
        return asked
    taken = set() if features is None else set(features)
    spare = [name for name in columns if name not in taken]
    fitting = [name for name in spare if str(name).lower() in LABEL_NAMES]
    if not fitting and taken and len(spare) == 1:
        return spare[0]
    return _only(fitting, columns, "the true classes", "name it with --labels (labels=...)")


def text_column(frame: pd.DataFrame, label: Any = None, asked: str | None = None) -> Any:
    """The column of the texts: the one asked for, else one by its usual name, else the only one of text."""
    columns = [name for name in frame.columns if name != label]
    if asked is not None:
        if asked not in columns:
            raise InputError(f"there is no column '{asked}' of texts; the table has {_listed(columns)}")
        return asked
    texts = [name for name in columns if all(isinstance(value, str) for value in frame[name])]
    named = [name for name in texts if str(name).lower() in TEXT_NAMES]
    found = _only(named or texts, columns, "the texts", "name it with --text (text=...)")
    if found is None:
        raise InputError(f"no column holds texts; the table has {_listed(list(frame.columns))}")
    return found


def _only(fitting: list[Any], columns: list[Any], what: str, remedy: str) -> Any:
    if len(fitting) > 1:
        raise InputError(f"columns {_listed(fitting)} may each hold {what}, of {_listed(columns)}; {remedy}")
    return fitting[0] if fitting else None


def _listed(columns: list[Any], most: int = 30) -> str:
    shown = ", ".join(f"'{name}'" for name in columns[:most])
    return shown + (f" and {len(columns) - most} more" if len(columns) > most else "")
