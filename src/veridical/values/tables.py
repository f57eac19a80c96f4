"""Tables of scores as people paste them, and any table as a file.

Mean and interval, which way is better, the best marked; CSV that a spreadsheet shows and does not execute,
Parquet, Markdown, LaTeX.
"""

from __future__ import annotations

import io
import math
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.core.files import write_file
from veridical.errors import InputError, StorageError, visible
from veridical.values.scores import Direction, Scores

if TYPE_CHECKING:
    import pandas as pd

ARROWS = {Direction.HIGHER: "↑", Direction.LOWER: "↓"}
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX["\\"] = r"\textbackslash{}"
COMMANDS = ("=", "+", "-", "@")
KINDS = (".csv", ".parquet", ".md", ".tex")
_BLANKS = "".join(map(chr, range(33))) + "\x7f\x85\xa0"


@dataclass(frozen=True)
class Cell:
    """One mean with its interval."""

    text: str
    """Mean and interval, in as many digits as the interval can tell apart."""
    best: bool
    """Whether no other of its column is better."""


@dataclass(frozen=True)
class ScoreTable:
    """Explainers down, metrics across."""

    rows: Sequence[str]
    """Names of the explainers."""
    columns: Sequence[tuple[str, Direction]]
    """Names of the metrics, and which way each is better."""
    cells: Mapping[tuple[str, str], Cell]
    """What stands in the table; a cell that failed is not there."""

    def markdown(self) -> str:
        """A Markdown table; the best of a column is bold."""
        head, *body = self.lines(_markdown_text, "**{}**")
        rule = ["---", *["---:"] * len(self.columns)]
        return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *body])

    def latex(self) -> str:
        """A LaTeX tabular for `booktabs`; the best of a column is bold."""
        arrows = {Direction.HIGHER: r"$\uparrow$", Direction.LOWER: r"$\downarrow$"}
        head, *body = (" & ".join(line) + r" \\" for line in self.lines(_tex, r"\textbf{{{}}}", arrows))
        begin = rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}"
        return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])

    def text(self) -> str:
        """A table for a terminal; the best of a column has a star."""
        head, *rows = self.lines()
        return text_table(head, rows)

    def lines(
        self,
        escaped: Callable[[str], str] | None = None,
        mark: str = "{} *",
        arrows: Mapping[Direction, str] = ARROWS,
    ) -> list[list[str]]:
        """Head and rows as texts: names are escaped, the best of a column is put into `mark`."""
        escaped = escaped or _line
        lines = [["explainer", *(f"{escaped(name)} {arrows[way]}" for name, way in self.columns)]]
        for who in self.rows:
            found = [self.cells.get((who, name), Cell("failed", False)) for name, _ in self.columns]
            lines.append([escaped(who), *(mark.format(c.text) if c.best else c.text for c in found)])
        return lines


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines whose columns are as wide as their widest cell; the first column reads from the left.

    >>> print(text_table(["a", "b"], [["x", "1"]]))
    a  b
    x  1
    """
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return "  ".join([first.strip().ljust(widths[0]), *rest]).rstrip()

    return "\n".join(line(row) for row in (head, *rows))


def summary_row(scores: Scores) -> dict[str, Any]:
    """Mean with its interval over samples, direction, samples, how many have no value, flags and cost."""
    low, high = scores.ci()
    return {
        "mean": scores.mean(skip_nan=True),
        "low": low,
        "high": high,
        "direction": scores.direction.value,
        "samples": len(scores),
        "undefined": int(scores.values.isnan().sum()),
        "flags": "; ".join(f"{n} x {reason}" for reason, n in scores.flagged.items()),
        "forward": scores.cost.forward,
        "backward": scores.cost.backward,
    }


def score_table(scores: Mapping[tuple[str, str], Scores]) -> ScoreTable:
    """The table of scores by (explainer, metric)."""
    rows = list(dict.fromkeys(who for who, _ in scores))
    ways = {what: found.direction for (_, what), found in scores.items()}
    cells: dict[tuple[str, str], Cell] = {}
    for what in ways:
        means = {who: scores[who, what].utility.nanmean().item() for who in rows if (who, what) in scores}
        known = [mean for mean in means.values() if not math.isnan(mean)]
        for who, mean in means.items():
            best = len(known) > 1 and mean == max(known) and min(known) < max(known)
            cells[who, what] = Cell(_shown(scores[who, what]), best)
    return ScoreTable(rows, list(ways.items()), cells)


def _shown(scores: Scores) -> str:
    mean, (low, high) = scores.mean(skip_nan=True), scores.ci()
    if math.isnan(mean):
        return "no value"
    width = high - low if high > low else abs(mean) or 1.0
    digits = min(6, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else 3
    if math.isnan(low):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _line(text: str) -> str:
    return visible(" ".join(text.splitlines()))


def _tex(text: str) -> str:
    return re.sub(r"[&%$#_{}~^\\]", lambda found: _LATEX[found.group()], _line(text))


def _markdown_text(text: str) -> str:
    """No column of its own, no HTML and no link: some viewers render them."""
    return _line(text).replace("<", "&lt;").replace("|", "\\|").replace("[", "\\[")


def write_csv(frame: pd.DataFrame, path: str | Path) -> Path:
    """Write a table; a text that a spreadsheet would run as a formula gets an apostrophe in front."""
    return write_file(path, csv_text(frame), private=False)


def check_table_path(path: str | Path) -> Path:
    """Refuse a name that says no kind of table, or a place that cannot be written to, before any work."""
    path = Path(path)
    if path.suffix.lower() not in KINDS:
        raise InputError(f"a table is written as {', '.join(KINDS)}; '{path.name}' says none of them")
    return check_writable(path)


def check_page_path(path: str | Path) -> Path:
    """Refuse a name that says another kind of file than a page, or a place that cannot be written to."""
    path = Path(path)
    if path.suffix.lower() not in ("", ".html", ".htm"):
        raise InputError(f"a report is written as an HTML page; '{path.name}' says another kind of file")
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
    """Write a table as its name says; .md and .tex show `scores` as people paste them."""
    kind = check_table_path(path).suffix.lower()
    if kind == ".csv":
        return write_csv(frame, path)
    if kind == ".parquet":
        content = io.BytesIO()
        frame.to_parquet(content, index=False)
        return write_file(path, content.getvalue(), private=False)
    if scores is None:
        raise InputError(f"a row per sample is written as .csv or .parquet, got '{Path(path).name}'")
    return write_file(path, scores.markdown() if kind == ".md" else scores.latex(), private=False)


def csv_text(frame: pd.DataFrame) -> str:
    """The table as `write_csv` writes it."""
    safe = frame.copy()
    for column in safe.columns:
        safe[column] = [_cell(cell) if isinstance(cell, str) else cell for cell in safe[column]]
    safe.columns = [_cell(str(name)) for name in safe.columns]
    text: str = safe.to_csv(index=False)
    return text


def quoted(text: str) -> str:
    r"""The text, with an apostrophe where it would begin a formula.

    Spreadsheets skip white space and control characters in front, and read full-width signs as plain ones.

    >>> quoted("=1+1"), quoted(" \uff1dcmd"), quoted("fine")
    ("'=1+1", "' ＝cmd", 'fine')
    """
    bare = unicodedata.normalize("NFKC", text).lstrip("\ufeff\u200b\u200e\u200f" + _BLANKS)
    return f"'{text}" if bare.startswith(COMMANDS) or text[:1] in ("\t", "\r", "\n") else text


def _cell(text: str) -> str:
    # a bare carriage return would end the row, since only line feeds are quoted
    return visible(quoted(text).replace("\r\n", "\n").replace("\r", "\n"))
