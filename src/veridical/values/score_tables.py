"""Tables of scores as people paste them: mean and interval, which way is better, the best marked."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from veridical.values.scores import Direction, Scores

ARROWS = {Direction.HIGHER: "↑", Direction.LOWER: "↓"}
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX["\\"] = r"\textbackslash{}"


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
        head = ["explainer", *(f"{_bars(name)} {ARROWS[way]}" for name, way in self.columns)]
        lines = [head, ["---", *["---:"] * len(self.columns)]]
        lines += [[_bars(who), *self._row(who, "**{}**", str)] for who in self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"

    def latex(self) -> str:
        """A LaTeX tabular for `booktabs`; the best of a column is bold."""
        arrows = {Direction.HIGHER: r"$\uparrow$", Direction.LOWER: r"$\downarrow$"}
        head = " & ".join(["explainer", *(f"{_tex(name)} {arrows[way]}" for name, way in self.columns)])
        body = [" & ".join([_tex(who), *self._row(who, r"\textbf{{{}}}", _tex)]) for who in self.rows]
        lines = [rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}", r"\toprule", head + r" \\", r"\midrule"]
        return "\n".join([*lines, *(line + r" \\" for line in body), r"\bottomrule", r"\end{tabular}"]) + "\n"

    def html(self) -> str:
        """An HTML table; the best of a column is bold."""
        head = "".join(f"<th>{html.escape(name)} {ARROWS[way]}</th>" for name, way in self.columns)
        body = "".join(
            f"<tr><th>{html.escape(who)}</th>"
            + "".join(f"<td>{cell}</td>" for cell in self._row(who, "<b>{}</b>", html.escape))
            + "</tr>"
            for who in self.rows
        )
        return f"<table><thead><tr><th>explainer</th>{head}</tr></thead><tbody>{body}</tbody></table>"

    def text(self) -> str:
        """A table for a terminal; the best of a column has a star."""
        head = ["explainer", *(f"{name} {ARROWS[way]}" for name, way in self.columns)]
        lines = [head, *([who, *self._row(who, "{} *", str)] for who in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        return "\n".join(
            "  ".join(
                [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
            )
            for line in lines
        )

    def _row(self, who: str, mark: str, escaped: object) -> list[str]:
        out = []
        for what, _ in self.columns:
            cell = self.cells.get((who, what))
            text = "failed" if cell is None else escaped(cell.text)  # type: ignore[operator]
            out.append(mark.format(text) if cell is not None and cell.best else text)
        return out


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
            cells[who, what] = Cell(_told(scores[who, what]), best)
    return ScoreTable(rows, list(ways.items()), cells)


def _told(scores: Scores) -> str:
    mean, (low, high) = scores.mean(skip_nan=True), scores.ci()
    if math.isnan(mean):
        return "no value"
    width = high - low if high > low else abs(mean) or 1.0
    digits = min(6, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else 3
    if math.isnan(low):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _tex(text: str) -> str:
    return re.sub(r"[&%$#_{}~^\\]", lambda found: _LATEX[found.group()], text)


def _bars(text: str) -> str:
    return text.replace("|", "\\|")
