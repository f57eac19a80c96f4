"""One cell of the atlas as a job: known by what made it, done anywhere, kept in a file."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import secrets
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from veridical._version import __version__
from veridical.atlas.bench import Bench, Size, make_bench, modality_of, nearness
from veridical.atlas.cell import FAILED, Row, described, measured
from veridical.atlas.measures import LEVEL
from veridical.atlas.verdicts import WAITING
from veridical.errors import FormatError, VeridicalError, VeridicalWarning
from veridical.explainers import Explainer
from veridical.meta.voices import interval
from veridical.metrics.base import AnyMetric
from veridical.values.sealed import get, put

ABSENT = "no such task here"


@dataclass(frozen=True, eq=False)
class Cell:
    """One metric on one task; without a metric, how near each explainer comes to the truth there."""

    task: str
    label: str
    metric: AnyMetric | None
    size: Size
    seed: int
    steady: bool
    explainers: Mapping[str, Explainer]
    device: str | None

    @cached_property
    def address(self) -> str:
        """What its result is known by: everything that made it, the text of the user's own code included."""
        parts = {"": self.metric, **self.explainers}
        made: list[Any] = [
            {who: [part.to_json(), _code(part)] for who, part in parts.items() if part is not None}
        ]
        made += [self.task, self.label, self.size, self.seed, self.steady, self.device, __version__]
        return hashlib.blake2b(json.dumps(made, default=repr).encode(), digest_size=12).hexdigest()


def _code(part: Any) -> str:
    """The text of code that is not ours; where there is none to read, nothing is like it."""
    found = [one for one in (type(part), *vars(part).values()) if callable(one)]
    try:
        return "".join(inspect.getsource(o) for o in found if not o.__module__.startswith("veridical."))
    except (OSError, TypeError, AttributeError):
        return secrets.token_hex(8)


def carry_out(cell: Cell) -> dict[str, Any]:
    """The rows of a cell as plain data, and the seconds that one score took."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VeridicalWarning)
        rows, seconds = _rows(cell)
    plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
    return {
        "address": cell.address,
        "task": cell.task,
        "label": cell.label,
        "rows": plain,
        "seconds": _plain(seconds, 6),
        "date": _date(datetime.now(UTC)),
    }


def _rows(cell: Cell) -> tuple[list[Row], float]:
    try:
        bench = _bench(cell.task, cell.size.samples, cell.seed, cell.device, _Given(cell.explainers))
    except Exception as error:  # a task that cannot be made must not take the others along
        why = f"{ABSENT}: {error}" if isinstance(error, VeridicalError) else f"{FAILED}: {error!r}"
        if cell.metric is None:
            return [], math.nan
        return [described(cell.task, 0, cell.label, cell.metric, why)], math.nan
    if cell.metric is None:
        return list(_near(bench)), math.nan
    row, seconds = measured(bench, cell.label, cell.metric, cell.size, cell.steady)
    return [row], seconds


def _near(bench: Bench) -> Iterator[Row]:
    """How near the maps of each explainer come to the truth."""
    assert bench.truth is not None
    for label in bench.rivals:
        mean, low, high = interval(nearness(bench.maps[label], bench.truth), LEVEL)
        row = {"explainer": label, "modality": modality_of(bench.name), "task": bench.name}
        yield {**row, "nearness": mean, "nearness_low": low, "nearness_high": high}


class _Given(dict[str, Any]):
    """Explainers that a cache can be asked for: the same labels are the same explainers in one run."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


@cache
def _bench(task: str, samples: int, seed: int, device: str | None, explainers: _Given) -> Bench:
    return make_bench(task, samples, seed, explainers, device)


def keep(cell: Cell, found: dict[str, Any], folder: Path) -> None:
    """Write what a cell gave."""
    put(_place(cell, folder), json.dumps(found, allow_nan=False) + "\n", private=False)


def waiting(cell: Cell) -> dict[str, Any]:
    """What stands for a cell that is not measured yet."""
    rows = [] if cell.metric is None else [described(cell.task, 0, cell.label, cell.metric, WAITING)]
    return {"task": cell.task, "label": cell.label, "rows": rows, "seconds": None, "date": ""}


def kept(cell: Cell, folder: Path, *, failed: bool = False) -> dict[str, Any] | None:
    """What this very cell gave before; one that failed, or had no task, is tried again unless asked for."""
    place = _place(cell, folder)
    try:
        found: dict[str, Any] = json.loads(get(place))
        said = [str(row.get("reason")) for row in found["rows"]]
        found.setdefault("date", _date(datetime.fromtimestamp(place.stat().st_mtime, UTC)))
    except (FormatError, ValueError, KeyError):
        return None
    again = not failed and any(reason.startswith((FAILED, ABSENT)) for reason in said)
    return None if again or found.get("address") != cell.address else found


def _place(cell: Cell, folder: Path) -> Path:
    name = f"{cell.task} {cell.label or 'explainers'}".replace("/", "-").replace(":", "-")
    return folder / f"{name}.json"


def _date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _plain(value: Any, digits: int = 4) -> Any:
    if isinstance(value, float):
        return round(value, digits) if math.isfinite(value) else None
    return value
