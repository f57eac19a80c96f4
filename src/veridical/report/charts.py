"""The charts of a report: plain data in, SVG out. Colours say how far a method can be trusted.

A line or mark carries the class of its `status` ("best", "trusted", "untrusted", "control", "plain"), which
the style sheet colours for light and dark alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from veridical.report.svg import Scale, line, number, path, picture, scale_of, tag, text, tick

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
                tag(
                    "circle",
                    tag("title", one["label"]),
                    cx=a,
                    cy=b,
                    r=1.6 + 2.0 * place / max(1, len(known)),
                    class_=f"dot {one['status']}",
                )
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
            tag(
                "text",
                _cut(one["label"]),
                tag("title", one["label"]),
                x=at + 9,
                y=place + 3.5,
                class_=f"name {one['status']}",
            ),
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
            tag("circle", cx=x(one["score"]), cy=11.0, r=4.5, class_=f"dot {one['status']}"),
        ]
    return picture(f"Score of {one['explainer']}", said, width, 22, parts, klass="spark")


CORNERS = (("IAC noise", 0.0, -1.0), ("IEC noise", 1.0, 0.0), ("IAC adv.", 0.0, 1.0), ("IEC adv.", -1.0, 0.0))
ENTRY = (0, 2, 1, 3)
"""Which of (IAC_NR, IAC_AR, IEC_NR, IEC_AR) lies at each corner."""
TESTS = {"ipt": "inputs disturbed", "mpt": "weights disturbed", "combined": "both disturbed"}


def area_chart(metric: str, areas: Mapping[str, Sequence[float | None]]) -> Markup:
    """The four consistencies of a metric as an area, one per test; a perfect metric fills the diamond."""
    centre, radius = (100.0, 76.0), 54.0
    parts = []
    for share in (0.5, 1.0):
        corners = [
            (centre[0] + share * radius * dx, centre[1] + share * radius * dy) for _, dx, dy in CORNERS
        ]
        parts.append(tag("polygon", points=_points(corners), class_="ideal" if share == 1 else "half"))
    said = []
    for place, (test, entries) in enumerate(areas.items()):
        values = [entries[entry] or 0.0 for entry in ENTRY]
        corners = [
            (centre[0] + value * radius * dx, centre[1] + value * radius * dy)
            for value, (_, dx, dy) in zip(values, CORNERS, strict=True)
        ]
        parts.append(
            tag(
                "polygon",
                tag("title", TESTS.get(test, test)),
                points=_points(corners),
                class_=f"area a{place}",
            )
        )
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


def _points(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def histogram(one: Data, *, width: float = 300, height: float = 130) -> Markup:
    """How random rankings of the same values score, and where this explanation and its inverse stand."""
    edges, counts = one["edges"], one["counts"]
    marks = [v for v in (one["own"], one["inverse"]) if v is not None]
    x = scale_of([*edges, *marks], 8, width - 8)
    y = Scale(0.0, float(max(counts, default=1) or 1), height - 26, 12)
    parts = [
        tag(
            "rect",
            x=x(a),
            y=y(count),
            width=max(0.5, x(b) - x(a) - 0.5),
            height=y.start - y(count),
            class_="mass",
        )
        for a, b, count in zip(edges, edges[1:], counts, strict=False)
    ]
    parts.append(line(8, y.start, width - 8, y.start, "axis"))
    for value in x.ticks(4):
        parts.append(text(x(value), y.start + 14, tick(value), "tick", "middle"))
    if one["inverse"] is not None:
        parts.append(line(x(one["inverse"]), 8, x(one["inverse"]), y.start, "inverse"))
    if one["own"] is not None:
        parts.append(line(x(one["own"]), 4, x(one["own"]), y.start, "own"))
    said = f"better than {number(_percent(one['percentile']), 1)}% of random rankings"
    return picture(f"Standing in sample {one['id']}", said, width, height, parts, klass="chart small")


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def bars(title: str, names: Sequence[str], values: Sequence[float | None], *, width: float = 210) -> Markup:
    """Signed horizontal bars with names on the left."""
    wide = 6.0 * max((min(len(name), 16) for name in names), default=0) + 8
    top = max((abs(v) for v in values if v is not None), default=0.0) or 1.0
    low = -top if any(v is not None and v < 0 for v in values) else 0.0
    x = Scale(low, top, wide, width - 4)
    parts = []
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        y = 3 + 14.0 * row
        parts.append(
            tag(
                "text",
                _cut(name, 16),
                tag("title", name),
                x=wide - 5,
                y=y + 9,
                class_="tick",
                text_anchor="end",
            )
        )
        if value is not None:
            a, b = sorted((x(0.0), x(value)))
            parts.append(
                tag(
                    "rect",
                    tag("title", f"{name}: {value:.3g}"),
                    x=a,
                    y=y,
                    width=max(0.5, b - a),
                    height=10.0,
                    class_="plus" if value >= 0 else "minus",
                )
            )
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
            parts.append(
                tag(
                    "rect",
                    x=x(float(at)) - step / 2,
                    y=a,
                    width=step,
                    height=max(0.3, b - a),
                    class_="plus" if value > 0 else "minus",
                )
            )
    if signal is not None:
        own = scale_of(signal, height - 6, 6.0)
        parts.append(
            path([None if v is None else (x(float(at)), own(v)) for at, v in enumerate(signal)], "signal")
        )
    said = f"strongest at step {_strongest(values)} of {len(values)}"
    return picture(title, said, width, height, parts, klass="chart small")


def _strongest(values: Sequence[float | None]) -> int:
    return max(range(len(values)), key=lambda at: abs(values[at] or 0.0), default=0)
