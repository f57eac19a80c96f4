"""A heat map: names down, kinds across, a number in every cell; readable alone and inside a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from veridical.report.charts import coordinate, identity

NAMES, CELL, LINE, HEAD = 205.0, 52.0, 17.0, 34.0
LOW, MIDDLE, HIGH = (222, 137, 92), (246, 243, 236), (72, 152, 196)
"""Colours of the worst, of chance and of the best; cells keep them in dark pages, with dark figures."""
NONE = "#e3e1dc"


def heat_map(
    title: str,
    names: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    chance: float,
) -> Markup:
    """Cells coloured from below chance to 1; a dash where nothing was measured."""
    width, height = NAMES + CELL * len(columns) + 4, HEAD + LINE * len(names) + 4
    parts = []
    for at, column in enumerate(columns):
        words = column.split()
        for line, word in enumerate(words):
            y = HEAD - 6 - 12 * (len(words) - 1 - line)
            parts.append(text(NAMES + CELL * (at + 0.5), y, word, "tick", "middle"))
    for row, name in enumerate(names):
        y = HEAD + LINE * row
        parts.append(text(NAMES - 6, y + 12.5, name, "", "end"))
        for at, value in enumerate(values[row]):
            said = "–" if value is None else f"{value:.2f}"
            x, fill = NAMES + CELL * at, _colour(value, chance)
            box = tag("rect", x=x + 0.5, y=y + 0.5, width=CELL - 1, height=LINE - 1, rx=2.0, fill=fill)
            parts += [box, text(x + CELL / 2, y + 12.5, said, "on-cell", "middle")]
    description = f"{title}, for {len(names)} metrics."
    mark = identity(title, description)
    made = tag(
        "svg",
        tag("title", title, id=f"t{mark}"),
        tag("desc", description, id=f"d{mark}"),
        *parts,
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        role="img",
        aria_labelledby=f"t{mark} d{mark}",
        class_="chart",
    )
    # a file of its own needs the name space and the letters that a page's style gives
    alone = Markup('<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11"')
    return Markup(made.replace("<svg", alone, 1))


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """One element; underscores in attribute names stand for hyphens."""
    written = Markup("").join(
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"), coordinate(value) if isinstance(value, float) else value
        )
        for key, value in attributes.items()
    )
    inside = Markup("").join(escape(child) for child in children)
    return Markup("<{}{}>{}</{}>").format(Markup(name), written, inside, Markup(name))


def text(x: float, y: float, words: str, class_: str, anchor: str) -> Markup:
    """A line of text."""
    return tag("text", words, x=float(x), y=float(y), class_=class_, text_anchor=anchor)


def _colour(value: float | None, chance: float) -> str:
    if value is None:
        return NONE
    reach = 1 - chance
    share = max(-1.0, min(1.0, (value - chance) / reach))
    end = HIGH if share > 0 else LOW
    mixed = [round(m + abs(share) * (e - m)) for m, e in zip(MIDDLE, end, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)
