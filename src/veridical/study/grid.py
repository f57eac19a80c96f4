"""From the entries of a study file to single choices: each point of a grid, with a name of its own."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from veridical.core.files import check_limit
from veridical.study.spec import Entry, StudySpec, TaskEntry
from veridical.study.study_file import StudyFile


@dataclass(frozen=True)
class Choice:
    """One explainer, metric or task with all its settings; `place` says where the file asks for it."""

    label: str
    name: str | None = None
    code: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    samples: int | None = None
    seed: int = 0
    fill: str | float | None = None
    files: Mapping[str, Any] = field(default_factory=dict)
    place: tuple[str | int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The choice as plain data."""
        return {**asdict(self), "place": list(self.place)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Choice:
        """Back from plain data."""
        return cls(**{**data, "place": tuple(data["place"])})


@dataclass(frozen=True)
class Grid:
    """All choices of a study, axis by axis; their product is never written out."""

    tasks: tuple[Choice, ...]
    explainers: tuple[Choice, ...]
    metrics: tuple[Choice, ...]
    seeds: tuple[int, ...]


def expand(file: StudyFile) -> Grid:
    """Every point of every entry's grid, under labels that differ."""
    spec = file.spec
    axes = {axis: _choices(file, axis, getattr(spec, axis)) for axis in ("tasks", "explainers", "metrics")}
    check_limit("cells", math.prod(map(len, axes.values())) * len(spec.seeds), file.source)
    return Grid(**axes, seeds=tuple(spec.seeds))


def _choices(file: StudyFile, axis: str, entries: Sequence[Entry]) -> tuple[Choice, ...]:
    found: dict[str, Choice] = {}
    points = sum(math.prod(map(len, entry.grid.values())) for entry in entries)
    check_limit("grid_points", points, f"{file.source}: {axis}")
    for number, entry in enumerate(entries):
        for point in _points(entry.grid):
            settings = {**entry.settings, **point}
            label = _label(entry, settings if entry.label is None else point)
            if label in found:
                raise file.error((axis, number), f"'{label}' is there already; give one of them a label")
            found[label] = Choice(
                label,
                entry.name,
                entry.code,
                settings,
                {**file.spec.resources.given(), **entry.resources.given()},
                place=(axis, number),
                **_of_task(entry, file.spec),
            )
    return tuple(found.values())


def _of_task(entry: Entry, spec: StudySpec) -> dict[str, Any]:
    if not isinstance(entry, TaskEntry):
        return {}
    samples = entry.samples or spec.samples
    return {"samples": samples, "seed": entry.seed, "fill": entry.fill, "files": entry.files}


def _points(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _label(entry: Entry, shown: Mapping[str, Any]) -> str:
    base = entry.label or (entry.origin if entry.code is None else entry.code.partition(":")[2])
    said = ", ".join(f"{key}={_short(value)}" for key, value in shown.items())
    return f"{base} ({said})" if shown else base


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, separators=(",", ":"))
