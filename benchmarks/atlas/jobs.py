"""One cell of the atlas as a job: known by what made it, done anywhere."""

from __future__ import annotations

import inspect
import math
import secrets
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import Any

from benchmarks.atlas.bench import Bench, Size, make_bench, modality_of, nearness
from benchmarks.atlas.cell import FAILED, Row, described, measured
from benchmarks.atlas.measures import LEVEL
from benchmarks.atlas.verdicts import WAITING
from veridical._version import __version__
from veridical.errors import VeridicalError, VeridicalWarning
from veridical.explainers import Explainer
from veridical.jobs import content_hash
from veridical.meta.admissible import interval
from veridical.metrics.base import AnyMetric

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
    def hash(self) -> str:
        """What its result is known by: everything that made it, the text of the user's own code included."""
        parts = {"": self.metric, **self.explainers}
        made: list[Any] = [
            {who: [part.to_json(), _code(part)] for who, part in parts.items() if part is not None}
        ]
        made += [self.task, self.label, self.size, self.seed, self.steady, self.device, __version__]
        return content_hash(made)


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


def waiting(cell: Cell) -> dict[str, Any]:
    """What stands for a cell that is not measured yet."""
    rows = [] if cell.metric is None else [described(cell.task, 0, cell.label, cell.metric, WAITING)]
    return {"task": cell.task, "label": cell.label, "rows": rows, "seconds": None, "date": ""}


def to_do_again(found: dict[str, Any]) -> bool:
    """Whether a kept cell failed, or had no task: it is tried again."""
    return any(str(row.get("reason")).startswith((FAILED, ABSENT)) for row in found["rows"])


def _date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _plain(value: Any, digits: int = 4) -> Any:
    if isinstance(value, float):
        return round(value, digits) if math.isfinite(value) else None
    return value
