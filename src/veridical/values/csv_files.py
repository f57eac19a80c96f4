"""Tables as CSV that a spreadsheet shows and does not execute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

COMMANDS = ("=", "+", "-", "@", "\t", "\r")


def write_csv(frame: pd.DataFrame, path: str | Path) -> Path:
    """Write a table; a text that a spreadsheet would run as a formula gets an apostrophe in front."""
    safe = frame.copy()
    for column in safe.columns:
        safe[column] = [quoted(cell) if isinstance(cell, str) else cell for cell in safe[column]]
    safe.columns = [quoted(str(name)) for name in safe.columns]
    safe.to_csv(path, index=False)
    return Path(path)


def quoted(text: str) -> str:
    """The text, with an apostrophe where it would begin a formula."""
    return f"'{text}" if text.startswith(COMMANDS) else text
