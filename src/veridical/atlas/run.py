"""Measuring the atlas: cells that know nothing of each other, done once, kept, and put together."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from veridical._version import __version__
from veridical.api import as_metric, labelled
from veridical.atlas.bench import SIZES, Bench, Size, make_bench, modality_of, nearness, tasks_of
from veridical.atlas.cell import FAILED, Row, measured
from veridical.atlas.measures import LEVEL
from veridical.atlas.result import Atlas
from veridical.errors import InputError, VeridicalError, unknown_name
from veridical.explainers import Explainer, as_explainer
from veridical.meta.voices import interval
from veridical.metrics.base import AnyMetric, ExplainerMetric
from veridical.metrics.base import registry as metric_registry
from veridical.progress import track
from veridical.values.sealed import get, put

BESIDE = ("qge:pixel_flipping", "qge:faithfulness_correlation")
"""Metrics made of others that are measured as well, unless metrics are named."""


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


def measure(
    folder: str | Path | None = None,
    *,
    size: str | Size = "small",
    metrics: Any = None,
    tasks: Sequence[str] | None = None,
    explainers: Any = (),
    seed: int = 0,
    workers: int = 1,
    device: str | None = None,
    progress: bool | None = None,
) -> Atlas:
    """Measure metrics (all of them unless named) on tasks of every kind of input.

    Every finished cell is kept in `folder`: after Ctrl-C the same call goes on, and the tables it writes are
    the same bytes. `explainers` are methods of your own that stand among the maps that metrics judge and are
    compared with known answers. `workers` are processes; one is this process.

    >>> import veridical as vd
    >>> found = vd.atlas.measure(size="tiny", metrics=["sparseness"], tasks=["known/linear"], progress=False)
    >>> found.verdict("sparseness", "table")
    'do not use'
    """
    chosen = _size(size)
    judges = labelled([*metric_registry, *BESIDE] if metrics is None else metrics, as_metric)
    methods = labelled(explainers, as_explainer)
    if not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers counts processes, from 1; got {workers!r}")
    names = list(tasks_of(chosen) if tasks is None else tasks)
    steady = [name for name in names if chosen.draws and _steadied(name, names)]
    cells = [
        Cell(task, label, judge, chosen, seed, task in steady, methods, device)
        for task in names
        for label, judge in [*judges.items(), ("", None)]
        if judge is not None or task.startswith("known/")
    ]
    start = time.perf_counter()
    done = _all_done(cells, None if folder is None else Path(folder) / "cells", workers, progress)
    results = [done[cell.address] for cell in cells]
    run = {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": _command(size, judges if metrics else (), tasks or (), methods, seed, workers, device),
        "size": size if isinstance(size, str) else "own",
        **chosen.__dict__,
        "seed": seed,
        "workers": workers,
        "device": _device(device),
        "wall_seconds": round(time.perf_counter() - start, 1),
        "versions": {
            "veridical": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "seconds": {f"{r['task']} | {r['label']}": r["seconds"] for r in results if r["label"]},
    }
    rows = [row for found in results for row in found["rows"] if found["label"]]
    near = [row for found in results for row in found["rows"] if not found["label"]]
    atlas = Atlas(rows, near, run)
    if folder is not None:
        atlas.save(folder)
    return atlas


def _all_done(
    cells: Sequence[Cell], folder: Path | None, workers: int, progress: bool | None
) -> dict[str, dict[str, Any]]:
    """What every cell gave, read where it is kept; methods first, which take longest."""
    done = {cell.address: kept for cell in cells if (kept := _kept(cell, folder)) is not None}
    left = sorted((c for c in cells if c.address not in done), key=_cheap)
    for cell, found in _carried_out(left, workers, progress):
        done[cell.address] = found
        if folder is not None:
            put(_place(cell, folder), json.dumps(found, allow_nan=False) + "\n", private=False)
    return done


def _carried_out(
    cells: Sequence[Cell], workers: int, progress: bool | None
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if workers == 1 or len(cells) < 2:
        for cell in track(cells, "measuring", progress):
            yield cell, carry_out(cell)
        return
    # a fresh process a worker: torch's threads do not survive a fork
    before = set(active_children())
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_alone) as pool:
        jobs = {pool.submit(carry_out, cell): cell for cell in cells}
        ended = as_completed(jobs)
        try:
            for _ in track(range(len(jobs)), "measuring", progress):
                job = next(ended)
                yield jobs[job], job.result()
        except BaseException:
            # whoever ends this does not want to wait for cells that take minutes
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(active_children()) - before:
                worker.terminate()
            raise


def carry_out(cell: Cell) -> dict[str, Any]:
    """The rows of a cell as plain data, and the seconds that one score took."""
    seconds = float("nan")
    try:
        bench = _bench(cell.task, cell.size.samples, cell.seed, cell.device, _Given(cell.explainers))
    except Exception as error:  # a task that cannot be made must not take the others along
        why = f"no such task here: {error}" if isinstance(error, VeridicalError) else f"{FAILED}: {error!r}"
        rows: list[Row] = [] if cell.metric is None else [_unavailable(cell, why)]
    else:
        if cell.metric is None:
            rows = list(_near(bench))
        else:
            row, seconds = measured(bench, cell.label, cell.metric, cell.size, cell.steady)
            rows = [row]
    plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
    return {
        "address": cell.address,
        "task": cell.task,
        "label": cell.label,
        "rows": plain,
        "seconds": _plain(seconds, 6),
    }


def _near(bench: Bench) -> Iterator[Row]:
    """How near the maps of each explainer come to the truth."""
    assert bench.truth is not None
    for label in bench.rivals:
        mean, low, high = interval(nearness(bench.maps[label], bench.truth), LEVEL)
        row = {"explainer": label, "modality": modality_of(bench.name), "task": bench.name}
        yield {**row, "nearness": mean, "nearness_low": low, "nearness_high": high}


def _unavailable(cell: Cell, why: str) -> Row:
    assert cell.metric is not None
    judges = "methods" if isinstance(cell.metric, ExplainerMetric) else "maps"
    row: Row = {"metric": cell.label, "category": cell.metric.category, "judges": judges, "task": cell.task}
    return {**row, "modality": modality_of(cell.task), "samples": 0, "reason": why}


class _Given(dict[str, Any]):
    """Explainers that a cache can be asked for: the same labels are the same explainers in one run."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


@cache
def _bench(task: str, samples: int, seed: int, device: str | None, explainers: _Given) -> Bench:
    return make_bench(task, samples, seed, explainers, device)


def _alone() -> None:
    """One thread a process: bit-equal results, and workers do not fight over cores."""
    torch.set_num_threads(1)


def _steadied(name: str, names: Sequence[str]) -> bool:
    """Meta-evaluation is asked once per kind of input: on its trained task, or the only one there is."""
    same = [other for other in names if modality_of(other) == modality_of(name)]
    return name == next((other for other in same if not other.startswith("known/")), same[0])


def _cheap(cell: Cell) -> tuple[bool, bool]:
    return not isinstance(cell.metric, ExplainerMetric), not cell.steady


def _place(cell: Cell, folder: Path) -> Path:
    name = f"{cell.task} {cell.label or 'explainers'}".replace("/", "-").replace(":", "-")
    return folder / f"{name}.json"


def _kept(cell: Cell, folder: Path | None) -> dict[str, Any] | None:
    if folder is None or not _place(cell, folder).is_file():
        return None
    try:
        found: Mapping[str, Any] = json.loads(get(_place(cell, folder)))
    except ValueError:
        return None
    failed = any(str(row.get("reason", "")).startswith(FAILED) for row in found.get("rows", ()))
    return dict(found) if found.get("address") == cell.address and not failed else None


def _plain(value: Any, digits: int = 4) -> Any:
    if isinstance(value, float):
        return round(value, digits) if value == value and abs(value) != float("inf") else None
    return value


def _size(size: str | Size) -> Size:
    if isinstance(size, Size):
        return size
    if size not in SIZES:
        raise unknown_name("size of an atlas", size, SIZES)
    return SIZES[size]


def _command(
    size: str | Size, metrics: Any, tasks: Any, explainers: Any, seed: int, workers: int, device: str | None
) -> str:
    """The command that repeats this, as far as names can say it."""
    words = [
        "veridical",
        "atlas",
        "FOLDER",
        "--size",
        str(size),
        "--seed",
        str(seed),
        "--workers",
        str(workers),
    ]
    for option, names in (("--metric", metrics), ("--task", tasks), ("--explainer", explainers)):
        words += [word for name in names for word in (option, name)]
    return shlex.join(words + (["--device", device] if device else []))


def _device(device: str | None) -> str:
    if device is not None and device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return device or f"cpu, {platform.machine()}"
