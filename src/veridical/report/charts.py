"""The charts of a report: plain data in, SVG out, escaped by construction.

Colours say how far a method can be trusted: a line or point carries the class of its `status` ("best",
"trusted", "untrusted", "control", "plain"), which the style sheet colours for light and dark alike.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
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


def text(x: float, y: float, said: Any, class_: str = "", anchor: str = "start", whole: str = "") -> Markup:
    """A line of text; `whole` is shown where the pointer rests on one that was cut."""
    return tag("text", said, *_tip(whole), x=float(x), y=float(y), class_=class_ or None, text_anchor=anchor)


def circle(x: float, y: float, radius: float, class_: str, said: str = "") -> Markup:
    """A dot."""
    return tag("circle", *_tip(said), cx=float(x), cy=float(y), r=float(radius), class_=class_)


def rect(x: float, y: float, width: float, height: float, class_: str, said: str = "") -> Markup:
    """A filled box from its upper left corner."""
    return tag(
        "rect", *_tip(said), x=float(x), y=float(y), width=float(width), height=float(height), class_=class_
    )


def polygon(corners: Iterable[tuple[float, float]], class_: str, said: str = "") -> Markup:
    """A closed area."""
    return tag("polygon", *_tip(said), points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners), class_=class_)


def _tip(said: str) -> list[Markup]:
    """What is shown where the pointer rests."""
    return [tag("title", said)] if said else []


def path(points: Sequence[tuple[float, float] | None], class_: str, said: str = "") -> Markup:
    """A line through points; None breaks it."""
    steps, drawing = [], False
    for point in points:
        if point is None:
            drawing = False
            continue
        steps.append(f"{'L' if drawing else 'M'}{_text(float(point[0]))} {_text(float(point[1]))}")
        drawing = True
    return tag("path", *_tip(said), d="".join(steps), class_=class_)


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


LABEL_GAP = 12.0
LONGEST_LABEL = 22
Data = Mapping[str, Any]


def line_chart(
    title: str,
    lines: Sequence[Data],
    x_label: str,
    y_label: str,
    *,
    markers: bool = False,
    bend: bool = False,
    width: float = 460,
    height: float = 250,
) -> Markup:
    """One line per method, named at its end; `lines` hold `label`, `status`, `x` and `y`."""
    left, top, bottom = 44.0, 26.0, 42.0
    right = 14.0 + 6.3 * max((min(len(one["label"]), LONGEST_LABEL) for one in lines), default=0)
    height = max(height, top + bottom + LABEL_GAP * len(lines))
    x = scale_of((v for one in lines for v in one["x"]), left, width - right, bend)
    y = scale_of((v for one in lines for v in one["y"]), height - bottom, top, bend)
    parts = _axes(x, y, x_label, y_label, width - right)
    ends: dict[str, tuple[float, float, Data]] = {}
    for one in sorted(lines, key=lambda one: _ORDER.get(one["status"], 0)):
        points = [
            None if a is None or b is None else (x(a), y(b)) for a, b in zip(one["x"], one["y"], strict=True)
        ]
        known = [point for point in points if point is not None]
        parts.append(path(points, f"line {one['status']}", one["label"]))
        if markers or len(known) == 1:
            parts += [
                circle(a, b, 1.6 + 2.0 * place / max(1, len(known)), f"dot {one['status']}", one["label"])
                for place, (a, b) in enumerate(known)
            ]
        if known:
            ends[one["label"]] = (*known[-1], one)
    # the order of the lines given, which is the ranking's, holds among those that end together
    parts += _end_labels(
        [ends[one["label"]] for one in lines if one["label"] in ends], width - right, top, height - bottom
    )
    names = ", ".join(one["label"] for one in lines)
    return picture(title, f"{y_label} over {x_label} for {names}.", width, height, parts)


_ORDER = {"control": 0, "untrusted": 1, "plain": 1, "trusted": 2, "best": 3}
"""What is drawn last lies on top."""


def _axes(x: Scale, y: Scale, x_label: str, y_label: str, end: float) -> list[Markup]:
    parts = []
    for value in y.ticks():
        parts += [
            line(x.start, y(value), end, y(value), "grid"),
            text(x.start - 6, y(value) + 3.5, tick(value), "tick", "end"),
        ]
    for value in x.ticks():
        parts += [
            line(x(value), y.start, x(value), y.start + 4, "axis"),
            text(x(value), y.start + 15, tick(value), "tick", "middle"),
        ]
    parts.append(line(x.start, y.start, end, y.start, "axis"))
    parts.append(text((x.start + end) / 2, y.start + 33, x_label, "axis-name", "middle"))
    return [*parts, text(2, 11, _cut(y_label, 62), "axis-name")]


def _end_labels(ends: list[tuple[float, float, Data]], at: float, top: float, bottom: float) -> list[Markup]:
    """Names at the ends of lines, moved apart so that none covers another."""
    ends = sorted(ends, key=lambda end: round(end[1], 1))
    places = spread([y for _, y, _ in ends], LABEL_GAP, top, bottom)
    parts = []
    for (x, y, one), place in zip(ends, places, strict=True):
        parts += [
            path([(x, y), (at + 6, place)], "leader"),
            text(at + 9, place + 3.5, _cut(one["label"]), f"name {one['status']}", whole=one["label"]),
        ]
    return parts


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


def _cut(name: str, longest: int = LONGEST_LABEL) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


def interval(one: Data, reference: float | None, *, width: float = 220) -> Markup:
    """A score with its interval on [0, 1], and a line at a half, where nothing is won."""
    x = Scale(0.0, 1.0, 4.0, width - 4)
    parts = [line(4, 11, width - 4, 11, "grid")]
    if reference is not None:
        parts.append(line(x(reference), 1, x(reference), 21, "reference"))
    if one["score"] is None:
        said = f"{one['explainer']} has no score"
    else:
        said = f"{one['score']:.0%}, interval {one['low']:.0%} to {one['high']:.0%}"
        parts += [
            line(x(one["low"]), 11, x(one["high"]), 11, f"bar {one['status']}"),
            circle(x(one["score"]), 11, 4.5, f"dot {one['status']}"),
        ]
    return picture(f"Score of {one['explainer']}", said, width, 22, parts, klass="spark")


CORNERS = (("IAC noise", 0.0, -1.0), ("IEC noise", 1.0, 0.0), ("IAC adv.", 0.0, 1.0), ("IEC adv.", -1.0, 0.0))
ENTRY = (0, 2, 1, 3)
"""Which of (IAC_NR, IAC_AR, IEC_NR, IEC_AR) lies at each corner."""
TESTS = {"ipt": "inputs disturbed", "mpt": "weights disturbed", "combined": "both disturbed"}


def area_chart(metric: str, areas: Mapping[str, Sequence[float | None]]) -> Markup:
    """The four consistencies of a metric as an area, one per test; a perfect metric fills the diamond."""
    centre, radius = (100.0, 76.0), 54.0

    def area(values: Sequence[float], class_: str, said: str = "") -> Markup:
        lengths = [value * radius for value in values]
        corners = [
            (centre[0] + length * dx, centre[1] + length * dy)
            for length, (_, dx, dy) in zip(lengths, CORNERS, strict=True)
        ]
        return polygon(corners, class_, said)

    parts = [area([0.5] * 4, "half"), area([1.0] * 4, "ideal")]
    said = []
    for place, (test, entries) in enumerate(areas.items()):
        values = [entries[entry] or 0.0 for entry in ENTRY]
        parts.append(area(values, f"area a{place}", TESTS.get(test, test)))
        numbers = ", ".join(
            f"{name} {number(entries[entry], 2)}" for (name, _, _), entry in zip(CORNERS, ENTRY, strict=True)
        )
        said.append(f"{TESTS.get(test, test)}: {numbers}")
    for name, dx, dy in CORNERS:
        anchor = "start" if dx > 0 else "end" if dx < 0 else "middle"
        down = 3.5 if dx else (-5 if dy < 0 else 13)
        where = centre[0] + dx * (radius + 5), centre[1] + dy * radius + down
        for part, word in enumerate(name.split() if dx else [name]):
            parts.append(text(where[0], where[1] + 10 * part - (5 if dx else 0), word, "tick", anchor))
    return picture(f"Consistencies of {metric}", "; ".join(said), 200, 152, parts, klass="chart small")


def histogram(one: Data, *, width: float = 300, height: float = 130) -> Markup:
    """How random rankings of the same values score, and where this explanation and its inverse stand."""
    edges, counts = one["edges"], one["counts"]
    marks = [v for v in (one["own"], one["inverse"]) if v is not None]
    x = scale_of([*edges, *marks], 8, width - 8)
    y = Scale(0.0, float(max(counts, default=1) or 1), height - 26, 12)
    parts = [
        rect(x(a), y(count), max(0.5, x(b) - x(a) - 0.5), y.start - y(count), "mass")
        for a, b, count in zip(edges, edges[1:], counts, strict=False)
    ]
    parts.append(line(8, y.start, width - 8, y.start, "axis"))
    for value in x.ticks(4):
        parts.append(text(x(value), y.start + 14, tick(value), "tick", "middle"))
    if one["inverse"] is not None:
        parts.append(line(x(one["inverse"]), 8, x(one["inverse"]), y.start, "inverse"))
    if one["own"] is not None:
        parts.append(line(x(one["own"]), 4, x(one["own"]), y.start, "own"))
    share = None if one["percentile"] is None else 100 * one["percentile"]
    said = f"better than {number(share, 1)}% of random rankings"
    return picture(f"Standing in sample {one['id']}", said, width, height, parts, klass="chart small")


def bars(title: str, names: Sequence[str], values: Sequence[float | None], *, width: float = 210) -> Markup:
    """Signed horizontal bars with names on the left."""
    wide = 6.0 * max((min(len(name), 16) for name in names), default=0) + 8
    top = max((abs(v) for v in values if v is not None), default=0.0) or 1.0
    low = -top if any(v is not None and v < 0 for v in values) else 0.0
    x = Scale(low, top, wide, width - 4)
    parts = []
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        y = 3 + 14.0 * row
        parts.append(text(wide - 5, y + 9, _cut(name, 16), "tick", "end", name))
        if value is not None:
            a, b = sorted((x(0.0), x(value)))
            sign = "plus" if value >= 0 else "minus"
            parts.append(rect(a, y, max(0.5, b - a), 10, sign, f"{name}: {value:.3g}"))
    height = 6 + 14.0 * len(names)
    parts.append(line(x(0.0), 1, x(0.0), height - 3, "axis"))
    said = "; ".join(f"{name} {number(value)}" for name, value in zip(names, values, strict=True))
    return picture(title, said, width, height, parts, klass="chart small")


def series(
    title: str,
    values: Sequence[float | None],
    signal: Sequence[float | None] | None = None,
    *,
    width: float = 210,
    height: float = 74,
) -> Markup:
    """Relevance over steps as an area about zero, and the signal itself as a line."""
    x = Scale(0.0, float(max(1, len(values) - 1)), 3.0, width - 3)
    known = [abs(v) for v in values if v is not None]
    top = max(known, default=0.0) or 1.0
    low = -top if any(v is not None and v < 0 for v in values) else 0.0
    y = Scale(low, top, height - 3, 3.0)
    parts = [line(3, y(0.0), width - 3, y(0.0), "axis")]
    step = max(0.8, (width - 6) / max(1, len(values)) * 0.8)
    for at, value in enumerate(values):
        if value:
            a, b = sorted((y(0.0), y(value)))
            sign = "plus" if value > 0 else "minus"
            parts.append(rect(x(float(at)) - step / 2, a, step, max(0.3, b - a), sign))
    if signal is not None:
        own = scale_of(signal, height - 6, 6.0)
        parts.append(
            path([None if v is None else (x(float(at)), own(v)) for at, v in enumerate(signal)], "signal")
        )
    strongest = max(range(len(values)), key=lambda at: abs(values[at] or 0.0), default=0)
    said = f"strongest at step {strongest} of {len(values)}"
    return picture(title, said, width, height, parts, klass="chart small")
