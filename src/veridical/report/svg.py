"""Drawing with SVG elements: escaped by construction, and coloured by the page's style sheet alone."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

TICKS = 5


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """One element; underscores in attribute names stand for hyphens, and None leaves an attribute out."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _text(value))
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(escape(child) for child in children)
    return Markup("<{}{}>{}</{}>").format(Markup(name), written, inside, Markup(name))


def _text(value: Any) -> str:
    """Coordinates to a hundredth: more is not seen, and makes pages large."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def picture(
    title: str, description: str, width: float, height: float, parts: Iterable[Any], *, klass: str = "chart"
) -> Markup:
    """A whole drawing with the words that a screen reader says instead of it."""
    mark = hashlib.sha1(f"{title}|{description}".encode(), usedforsecurity=False).hexdigest()[:10]
    return tag(
        "svg",
        tag("title", title, id=f"t{mark}"),
        tag("desc", description, id=f"d{mark}"),
        *parts,
        viewBox=f"0 0 {_text(float(width))} {_text(float(height))}",
        role="img",
        aria_labelledby=f"t{mark} d{mark}",
        class_=klass,
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def text(x: float, y: float, said: Any, class_: str = "", anchor: str = "start") -> Markup:
    """A line of text."""
    return tag("text", said, x=float(x), y=float(y), class_=class_ or None, text_anchor=anchor)


def path(points: Sequence[tuple[float, float] | None], class_: str, said: str = "") -> Markup:
    """A line through points; None breaks it."""
    steps, drawing = [], False
    for point in points:
        if point is None:
            drawing = False
            continue
        steps.append(f"{'L' if drawing else 'M'}{_text(float(point[0]))} {_text(float(point[1]))}")
        drawing = True
    return tag("path", *([tag("title", said)] if said else []), d="".join(steps), class_=class_)


@dataclass(frozen=True)
class Scale:
    """Where values lie along an axis; `bend` above 0 makes it linear near zero and logarithmic beyond."""

    low: float
    high: float
    start: float
    end: float
    bend: float = 0.0

    def __call__(self, value: float) -> float:
        low, high = self._bent(self.low), self._bent(self.high)
        share = (self._bent(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def _bent(self, value: float) -> float:
        return math.asinh(value / self.bend) if self.bend else value

    def ticks(self, count: int = TICKS) -> list[float]:
        """Round values along the axis."""
        if self.bend:
            return _powers(self.low, self.high, self.bend)
        return round_values(self.low, self.high, count)


def round_values(low: float, high: float, count: int = TICKS) -> list[float]:
    """About `count` values between two others that are pleasant to read.

    >>> round_values(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(step * place, 12) for place in range(first, last + 1)]


def _powers(low: float, high: float, bend: float) -> list[float]:
    """Zero and powers of ten beyond the bend; with 2 and 5 between them where powers alone are few."""
    first, last = math.floor(math.log10(bend)), math.ceil(math.log10(high))
    steps: tuple[int, ...] = (1,) if last - first > 3 else (1, 2, 5)
    found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    every = max(1, len(found) // 7)
    return [
        value
        for value in [0.0, *found[::every]]
        if (value == 0 and low <= 0) or (bend <= value <= high and value >= low)
    ]


def scale_of(values: Iterable[float | None], start: float, end: float, bend: bool = False) -> Scale:
    """The scale that holds all values; with `bend`, bent where they span several magnitudes."""
    known = [v for v in values if v is not None and math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if high <= low:
        pad = abs(low) * 0.1 or 0.5
        return Scale(low - pad, high + pad, start, end)
    middle = sorted(abs(v) for v in known)[len(known) // 2]
    if bend and low >= 0 and middle > 0 and high / middle > 8:
        return Scale(0.0, high, start, end, middle / 2)
    pad = 0.04 * (high - low)
    return Scale(low if low == 0 else low - pad, high + pad, start, end)


def number(value: float | None, digits: int = 3) -> str:
    """A short number for an axis or a table; a dash where there is none.

    >>> number(0.12345), number(12345.6), number(None), number(-2e-7)
    ('0.123', '12346', '–', '-2.00e-07')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 0.5 * 10**-digits:
        return f"{value:.{max(0, digits - 1)}e}"
    if size >= 1000:
        return f"{value:.0f}"
    return f"{value:.{digits}f}" if size < 10 else f"{value:.{max(0, digits - 2)}f}"


def tick(value: float) -> str:
    """A number beside a tick."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:g}"
