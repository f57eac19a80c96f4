"""The guide from question to metric says what the metrics say of themselves, and what they cost."""

import re
from pathlib import Path

import pytest

import veridical as vd
from scripts.docs_site.facts import metric_cost
from veridical.metrics import registry

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROW = re.compile(
    r"^\| [^|]+ \| `(?P<name>\w+)` (?P<arrow>[↑↓]) \|[^|]*\| (?P<cost>[^|]+) \| (?P<misleads>[^|]+) \|$"
)
ROWS = [found for line in (DOCS / "choose.md").read_text().splitlines() if (found := ROW.match(line))]


def test_the_table_was_found() -> None:
    assert len(ROWS) >= 12
    assert {registry.make(row["name"]).category for row in ROWS} == {
        "faithfulness",
        "robustness",
        "randomisation",
        "complexity",
        "localisation",
        "axiomatic",
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_direction_cost_and_warning_are_those_of_the_metric(row: re.Match[str]) -> None:
    metric = registry.make(row["name"])
    assert {"higher": "↑", "lower": "↓"}[metric.better.value] == row["arrow"]
    assert row["misleads"] == metric.misleads
    assert row["cost"] == metric_cost(row["name"])


def test_every_name_exists() -> None:
    text = re.sub(r"^```.*?^```", "", (DOCS / "choose.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    known = {*vd.list_metrics(), *vd.list_explainers(), "ceiling", "partial"}
    names = set(re.findall(r"`([a-z][a-z_]+)`", text))
    assert names <= known, names - known
