"""What the columns of an atlas mean, and the files it is kept in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from csv import DictReader
from pathlib import Path
from typing import Any

from veridical.atlas import DATA, FORMAT, RUN, Atlas
from veridical.core.files import write_file
from veridical.values.tables import write_table

SCHEMA = "schema.json"
EMPTY = {"number": None, "integer": 0, "string": ""}


def _columns(table: str) -> dict[str, tuple[str, str]]:
    """Type and meaning of each column of a table, by its name."""
    lines = (Path(__file__).parent / "schema.csv").read_text("utf-8").splitlines()
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


def filled(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """Rows with every column of their table."""
    return [
        {name: EMPTY[kind] if row.get(name) is None else row[name] for name, (kind, _) in columns.items()}
        for row in rows
    ]


def save(atlas: Atlas, folder: str | Path) -> Path:
    """Write the tables (JSON and Parquet), their schema and the run into a folder."""
    home = Path(folder)
    verdicts = [{**one._asdict(), "reasons": list(one.reasons)} for one in atlas.verdicts]
    tables = {"metrics": atlas.rows, "explainers": atlas.explainers, "verdicts": verdicts}
    data = {
        name: {"columns": list(rows[0]) if rows else [], "data": [list(row.values()) for row in rows]}
        for name, rows in tables.items()
    }
    _write(home / DATA, {"format": FORMAT, **data})
    _write(home / SCHEMA, schema(), indent=1)
    _write(home / RUN, atlas.run, indent=1)
    for name, frame in (("metrics", atlas.to_frame()), ("explainers", atlas.explainer_frame())):
        write_table(frame, home / f"{name}.parquet")
    return home


def _write(path: Path, data: Any, indent: int | None = None) -> None:
    separators = None if indent else (",", ":")
    write_file(
        path, json.dumps(data, indent=indent, separators=separators, allow_nan=False) + "\n", private=False
    )
