"""Charts: where marks lie, how names move apart, and what a screen reader is told."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veridical.report.charts import round_values, scale_of, spread
from veridical.report.rendering import environment

charts = environment("html").get_template("charts.html").module

LINES = [
    {"label": "good", "status": "best", "x": [0.0, 0.5, 1.0], "y": [0.0, 0.5, 1.0]},
    {"label": "<bad>", "status": "control", "x": [0.0, 0.5, 1.0], "y": [1.0, None, 0.0]},
]


def test_bent_scale_keeps_order_and_ends() -> None:
    scale = scale_of([0.0, 1.0, 2.0, 1000.0], 0.0, 100.0, bend=True)
    assert scale.bend > 0
    places = [scale(v) for v in (0.0, 1.0, 2.0, 1000.0)]
    assert places == sorted(places)
    assert places[0] == pytest.approx(0.0)
    assert places[-1] == pytest.approx(100.0)
    assert places[1] > 5, "small values are told apart"
    assert all(0 <= t <= 1000 for t in scale.ticks())
    assert len(scale.ticks()) >= 3


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_round_values_lie_between_and_are_even(low: float, width: float) -> None:
    high = low + width
    found = round_values(low, high)
    slack = 1e-6 * max(abs(low), abs(high), width)
    assert all(low - slack <= v <= high + slack for v in found)
    gaps = [b - a for a, b in pairwise(found)]
    assert all(gap == pytest.approx(gaps[0], rel=1e-3, abs=slack) for gap in gaps)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8).map(sorted))
def test_names_never_cover_each_other(wanted: list[float]) -> None:
    places = spread(wanted, 12.0, 0.0, 100.0)
    assert all(b - a >= 12.0 - 1e-9 for a, b in pairwise(places))
    assert places[-1] <= 100.0 + 1e-9
    assert places[0] >= -1e-9


def test_lines_rise_break_where_there_is_no_value_and_are_escaped() -> None:
    drawing = charts.line_chart("Title", LINES, "x", "y")
    broken = re.search(r'<path d="([^"]+)" class="line control"', drawing)
    rising = re.search(r'<path d="([^"]+)" class="line best"', drawing)
    assert broken is not None
    assert broken.group(1).count("M") == 2
    assert rising is not None
    heights = [float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", rising.group(1))]
    assert heights == sorted(heights, reverse=True)
    assert "&lt;bad&gt;" in drawing
    assert "<bad>" not in drawing


def test_interval_marks_score_and_reference() -> None:
    one = {"explainer": "e", "score": 0.5, "low": 0.25, "high": 0.75, "status": "best"}
    drawing = charts.interval(one)
    assert 'cx="110"' in drawing
    assert '<line x1="110" y1="1" x2="110"' in drawing
    assert "50%, interval 25% to 75%" in drawing
    assert "has no score" in charts.interval({**one, "score": None})
