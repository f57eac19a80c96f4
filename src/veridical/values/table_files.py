"""Tables as files: CSV that a spreadsheet shows and does not execute, Parquet, Markdown, LaTeX."""

from __future__ import annotations

import io
import os
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from veridical.errors import InputError, StorageError
from veridical.values.sealed import put

if TYPE_CHECKING:
    import pandas as pd

    from veridical.values.score_tables import ScoreTable

COMMANDS = ("=", "+", "-", "@")


def write_csv(frame: pd.DataFrame, path: str | Path) -> Path:
    """Write a table; a text that a spreadsheet would run as a formula gets an apostrophe in front."""
    return put(path, csv_text(frame), private=False)


KINDS = (".csv", ".parquet", ".md", ".tex")


def check_table_path(path: str | Path) -> Path:
    """Refuse a name that says no kind of table, or a place that cannot be written to, before any work."""
    path = Path(path)
    if path.suffix.lower() not in KINDS:
        raise InputError(f"a table is written as {', '.join(KINDS)}; '{path.name}' says none of them")
    return check_writable(path)


def check_writable(path: str | Path) -> Path:
    """Refuse a place where no file can be written, before the work whose result should go there."""
    path = Path(path)
    if path.is_dir():
        raise StorageError(f"{path} is a folder; give the name of a file in it")
    folder = next((up for up in path.absolute().parents if up.exists()), None)
    if folder is None or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise StorageError(f"{path} cannot be written: {folder} is no folder that you may write to")
    return path


def write_table(frame: pd.DataFrame, path: str | Path, scores: ScoreTable | None = None) -> Path:
    """Write a table as its name says; .md and .tex show `scores` as people paste them, where given."""
    kind = check_table_path(path).suffix.lower()
    if kind == ".csv":
        return write_csv(frame, path)
    if kind == ".parquet":
        content = io.BytesIO()
        frame.to_parquet(content, index=False)
        return put(path, content.getvalue(), private=False)
    if scores is not None:
        return put(path, scores.markdown() if kind == ".md" else scores.latex(), private=False)
    plain = frame.to_latex(index=False, escape=True) if kind == ".tex" else _markdown(frame)
    return put(path, plain, private=False)


def _markdown(frame: pd.DataFrame) -> str:
    lines = [list(map(str, frame.columns)), ["---"] * len(frame.columns)]
    lines += [[str(cell) for cell in row] for row in frame.itertuples(index=False)]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells) + "\n"


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
