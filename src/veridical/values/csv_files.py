"""Tables as CSV that a spreadsheet shows and does not execute."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from veridical.values.sealed import put

if TYPE_CHECKING:
    import pandas as pd

COMMANDS = ("=", "+", "-", "@")


def write_csv(frame: pd.DataFrame, path: str | Path) -> Path:
    """Write a table; a text that a spreadsheet would run as a formula gets an apostrophe in front."""
    return put(path, csv_text(frame), private=False)


def write_table(frame: pd.DataFrame, path: str | Path) -> Path:
    """Write a table as its name says: .parquet, or else CSV."""
    if Path(path).suffix != ".parquet":
        return write_csv(frame, path)
    content = io.BytesIO()
    frame.to_parquet(content, index=False)
    return put(path, content.getvalue(), private=False)


def csv_text(frame: pd.DataFrame) -> str:
    """The table as `write_csv` writes it."""
    safe = frame.copy()
    for column in safe.columns:
        safe[column] = [_cell(cell) if isinstance(cell, str) else cell for cell in safe[column]]
    safe.columns = [_cell(str(name)) for name in safe.columns]
    text: str = safe.to_csv(index=False)
    return text


def quoted(text: str) -> str:
    """The text, with an apostrophe where it would begin a formula.

    Spreadsheets skip white space and control characters in front, and read full-width signs as plain ones.

    >>> quoted("=1+1"), quoted(" \\uff1dcmd"), quoted("fine")
    ("'=1+1", "' ＝cmd", 'fine')
    """
    bare = unicodedata.normalize("NFKC", text).lstrip("\ufeff\u200b\u200e\u200f" + _BLANKS)
    return f"'{text}" if bare.startswith(COMMANDS) or text[:1] in ("\t", "\r", "\n") else text


def _cell(text: str) -> str:
    # a bare carriage return would end the row, since only line feeds are quoted
    return quoted(text).replace("\r\n", "\n").replace("\r", "\n")


_BLANKS = "".join(map(chr, range(33))) + "\x7f\x85\xa0"
