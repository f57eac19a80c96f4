"""An atlas: its two tables, what they come to per kind of input, and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.atlas.schema import EXPLAINERS, FORMAT, METRICS, schema
from veridical.atlas.verdicts import VERDICTS, Summary, summarised
from veridical.errors import FormatError, InputError
from veridical.values.sealed import get, put
from veridical.values.table_files import write_table

if TYPE_CHECKING:
    import pandas as pd

DATA, RUN, SCHEMA = "atlas.json", "run.json", "schema.json"


@dataclass(frozen=True, eq=False, repr=False)
class Atlas:
    """What was measured: one row per metric and task, one per explainer and known answer, and the run."""

    rows: Sequence[dict[str, Any]]
    explainers: Sequence[dict[str, Any]]
    run: dict[str, Any]
    """When, where and how it was measured; whatever another run would not repeat to the bit."""

    def to_frame(self) -> pd.DataFrame:
        """One row per metric and task; the columns are those of `vd.atlas.schema()`."""
        return _frame(self.rows, METRICS)

    def explainer_frame(self) -> pd.DataFrame:
        """How near each explainer comes to each known answer."""
        return _frame(self.explainers, EXPLAINERS)

    @cached_property
    def summaries(self) -> dict[tuple[str, str], Summary]:
        """What the rows of each (metric, modality) come to, best metrics first."""
        return summarised(self.rows)

    @property
    def modalities(self) -> list[str]:
        return list(dict.fromkeys(row["modality"] for row in self.rows))

    def verdict(self, metric: str, modality: str) -> str:
        """ "use", "use with care", "do not use" or "not measured"."""
        if (metric, modality) not in self.summaries:
            raise InputError(f"the atlas has no '{metric}' on '{modality}'; it has {self.modalities}")
        return self.summaries[metric, modality].verdict

    def listed(self, modality: str, verdict: str) -> list[Summary]:
        """The metrics of a verdict on one kind of input, best first."""
        return [s for s in self.summaries.values() if s.modality == modality and s.verdict == verdict]

    def save(self, folder: str | Path) -> Path:
        """Write the tables (JSON and Parquet), their schema and the run into a folder."""
        home = Path(folder)
        tables = {"metrics": self.to_frame(), "explainers": self.explainer_frame()}
        data = {
            name: json.loads(frame.to_json(orient="split", index=False)) for name, frame in tables.items()
        }
        _write(home / DATA, {"format": FORMAT, **data})
        _write(home / SCHEMA, schema(), indent=1)
        _write(home / RUN, self.run, indent=1)
        for name, frame in tables.items():
            write_table(frame, home / f"{name}.parquet")
        return home

    def __repr__(self) -> str:
        lines = [f"Atlas: {len({r['metric'] for r in self.rows})} metrics, {', '.join(self.modalities)}"]
        for modality in self.modalities:
            lines += [
                f"{modality}, {verdict}: {', '.join(s.metric for s in found)}"
                for verdict in VERDICTS
                if (found := self.listed(modality, verdict))
            ]
        return "\n".join(lines)


def load(folder: str | Path) -> Atlas:
    """The atlas that was saved in a folder."""
    home = Path(folder)
    try:
        data, run = json.loads(get(home / DATA)), json.loads(get(home / RUN))
        if data["format"] > FORMAT:
            raise FormatError(f"{home} has format {data['format']}, this version reads up to {FORMAT}")
        tables = [
            [dict(zip(data[name]["columns"], row, strict=True)) for row in data[name]["data"]]
            for name in ("metrics", "explainers")
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{home} holds no atlas: {error}") from error
    return Atlas(tables[0], tables[1], run)


def _frame(rows: Sequence[dict[str, Any]], columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    import pandas as pd

    kinds = {"number": "float64", "integer": "int64", "string": "object"}
    empty = {"number": None, "integer": 0, "string": ""}
    table = {
        name: pd.Series([_or(row.get(name), empty[kind]) for row in rows], dtype=kinds[kind])
        for name, (kind, _) in columns.items()
    }
    return pd.DataFrame(table)


def _or(value: Any, other: Any) -> Any:
    return other if value is None else value


def _write(path: Path, data: Any, indent: int | None = None) -> None:
    separators = None if indent else (",", ":")
    put(path, json.dumps(data, indent=indent, separators=separators, allow_nan=False) + "\n", private=False)
