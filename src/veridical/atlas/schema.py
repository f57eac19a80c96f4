"""What the columns of an atlas mean; written beside the data as a table schema."""

from __future__ import annotations

from csv import DictReader
from importlib.resources import files
from typing import Any

FORMAT = 1


def _columns(table: str) -> dict[str, tuple[str, str]]:
    """Type and meaning of each column of a table, by its name."""
    lines = files("veridical.atlas").joinpath("schema.csv").read_text("utf-8").splitlines()
    rows = [row for row in DictReader(lines) if row["table"] == table]
    return {row["name"]: (row["type"], row["description"]) for row in rows}


METRICS, EXPLAINERS = _columns("metrics"), _columns("explainers")


def schema() -> dict[str, Any]:
    """The columns of both tables with their types and meanings."""
    tables = {"metrics": METRICS, "explainers": EXPLAINERS}
    return {
        "format": FORMAT,
        "missing": "null: not asked, or no value",
        "tables": {
            name: [{"name": n, "type": kind, "description": said} for n, (kind, said) in columns.items()]
            for name, columns in tables.items()
        },
    }
