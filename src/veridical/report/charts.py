"""Where the marks of a chart lie; templates/charts.html draws them.

Colours say how far a method can be trusted: a line or point carries the class of its `status` ("best",
"trusted", "untrusted", "control", "plain"), which the style sheet colours for light and dark alike.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TICKS = 5
LABEL_GAP = 12.0
LONGEST_LABEL = 22
TESTS = {"ipt": "inputs disturbed", "mpt": "weights disturbed", "combined": "both disturbed"}
_ORDER = {"control": 0, "untrusted": 1, "plain": 1, "trusted": 2, "best": 3}
"""What is drawn last lies on top."""
COLOURS = 8
"""Colours of lines that no status distinguishes; the style sheet has them."""


def identity(*texts: str) -> str:
    """The id of a drawing, by its words."""
    return hashlib.sha1("|".join(texts).encode(), usedforsecurity=False).hexdigest()[:10]


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
        """Round values along the axis; powers of ten where it is bent."""
        if not self.bend:
            return round_values(self.low, self.high, count)
        first, last = math.ceil(math.log10(self.bend)), math.floor(math.log10(self.high))
        return [0.0, *(10.0**power for power in range(first, last + 1))]


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


def about_zero(values: Sequence[float | None], start: float, end: float) -> Scale:
    """The scale of signed values: symmetric where any is negative, else from zero."""
    top = max((abs(v) for v in values if v is not None), default=0.0) or 1.0
    return Scale(-top if any(v is not None and v < 0 for v in values) else 0.0, top, start, end)


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


def coordinate(value: float) -> str:
    """A coordinate to a hundredth: more is not seen, and makes pages large."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def path(points: Iterable[tuple[float, float] | None]) -> str:
    """A line through points as SVG writes it; None breaks it."""
    steps, command = [], "M"
    for point in points:
        if point is not None:
            steps.append(f"{command}{coordinate(point[0])} {coordinate(point[1])}")
        command = "M" if point is None else "L"
    return "".join(steps)


def cut(name: str, longest: int = LONGEST_LABEL) -> str:
    """A name that is not too long for its place."""
    return name if len(name) <= longest else name[: longest - 1] + "…"


def margin(names: Iterable[str], longest: int = LONGEST_LABEL) -> float:
    """Room for names that stand beside each other."""
    return 6.3 * max((min(len(name), longest) for name in names), default=0)


def lines(given: Sequence[Mapping[str, Any]], bend: bool, width: float, height: float) -> dict[str, Any]:
    """The layout of a line chart: its scales, its lines with their points, and the places of their names.

    Each of `given` holds `label`, `status`, `x` and `y`.
    """
    left, top, bottom = 44.0, 26.0, 42.0
    right = width - 14.0 - margin([one["label"] for one in given])
    height = max(height, top + bottom + LABEL_GAP * len(given))
    x = scale_of((v for one in given for v in one["x"]), left, right, bend)
    y = scale_of((v for one in given for v in one["y"]), height - bottom, top, bend)
    drawn = []
    for number_of, one in enumerate(given):
        if one["status"] == "plain":  # nothing is known of it: a colour and a dash of its own
            one = {**one, "status": f"plain k{number_of % COLOURS}"}
        pairs = zip(one["x"], one["y"], strict=True)
        points = [None if a is None or b is None else (x(a), y(b)) for a, b in pairs]
        known = [point for point in points if point is not None]
        drawn.append({**one, "points": points, "known": known})
    # the order of the lines given, which is the ranking's, holds among those that end together
    named = sorted((one for one in drawn if one["known"]), key=lambda one: round(one["known"][-1][1], 1))
    places = spread([one["known"][-1][1] for one in named], LABEL_GAP, top, height - bottom)
    return {
        "height": height,
        "x": x,
        "y": y,
        "lines": sorted(drawn, key=lambda one: _ORDER.get(one["status"].partition(" ")[0], 0)),
        "names": list(zip(named, places, strict=True)),
    }


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places at least `gap` apart and within bounds, near the wanted ones.

    >>> spread([1.0, 1.0, 9.0], 2.0, 0.0, 10.0)
    [1.0, 3.0, 9.0]
    """
    places: list[float] = []
    for want in wanted:
        places.append(max(want, low, places[-1] + gap if places else low))
    ceiling = high
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return places
