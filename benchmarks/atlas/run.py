"""Measuring the atlas: cells that know nothing of each other, done once, kept, and put together."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.atlas import jobs
from benchmarks.atlas.bench import SIZES, Size, modality_of, tasks_of
from benchmarks.atlas.jobs import Cell
from benchmarks.atlas.schema import EXPLAINERS, METRICS, filled, save
from benchmarks.atlas.verdicts import verdicts
from veridical._version import __version__
from veridical.api import as_metric, labelled
from veridical.atlas import Atlas
from veridical.errors import FormatError, InputError, unknown_name
from veridical.explainers import as_explainer
from veridical.jobs import Store, as_executor, resume
from veridical.metrics.base import ExplainerMetric
from veridical.metrics.base import registry as metric_registry

KIND, FORMAT = "atlas cell", 1
BESIDE = ("qge:pixel_flipping", "qge:faithfulness_correlation")
"""Metrics made of others that are measured as well, unless metrics are named."""


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
    only_kept: bool = False,
) -> Atlas:
    """Measure metrics (all of them unless named) on tasks of every kind of input.

    Every finished cell is kept in `folder`: after Ctrl-C the same call goes on, and the tables it writes are
    the same bytes. With `only_kept` nothing is asked: what is finished is put together, and a metric that
    lacks a cell on some kind of input has no verdict there. `explainers` are methods of your own that stand
    among the maps that metrics judge and are compared with known answers. `workers` are processes; one is
    this process.

    >>> found = measure(size="tiny", metrics=["sparseness"], tasks=["known/linear"], progress=False)
    >>> found.verdict("sparseness", "table")
    'do not use'
    """
    chosen = _size(size)
    judges = labelled([*metric_registry, *BESIDE] if metrics is None else metrics, as_metric)
    methods = labelled(explainers, as_explainer)
    if not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers counts processes, from 1; got {workers!r}")
    names = list(tasks_of(chosen) if tasks is None else tasks)
    if not judges or not names:
        raise InputError("give at least one metric and one task, or leave them out to measure all")
    steady = [name for name in names if chosen.draws and _steadied(name, names)]
    cells = [
        Cell(task, label, judge, chosen, seed, task in steady, methods, device)
        for task in names
        for label, judge in [*judges.items(), ("", None)]
        if judge is not None or task.startswith("known/")
    ]
    if only_kept and folder is None:
        raise InputError("only_kept puts together what is kept in a folder; give that folder")
    store = None if folder is None else Store(folder)
    if only_kept:
        done = {cell.hash: found for cell in cells if (found := _kept(cell, store)) is not None}
        if not done:
            raise InputError(f"'{folder}' holds no finished cell of these metrics, tasks, size and seed")
    else:
        done = _measured(cells, store, workers, progress)
    results = [done.get(cell.hash) or jobs.waiting(cell) for cell in cells]
    dates = sorted(filter(None, (found["date"] for found in results)))
    run = {
        "since": dates[0],
        "date": dates[-1],
        "command": _command(size, judges if metrics else (), tasks or (), methods, seed, workers, device),
        "size": size if isinstance(size, str) else "own",
        **chosen.__dict__,
        "seed": seed,
        "workers": workers,
        "device": _device(device),
        "versions": {
            "veridical": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "seconds": {f"{r['task']} | {r['label']}": r["seconds"] for r in results if r["label"]},
    }
    rows = filled([row for found in results for row in found["rows"] if found["label"]], METRICS)
    near = filled([row for found in results for row in found["rows"] if not found["label"]], EXPLAINERS)
    atlas = Atlas(rows, near, verdicts(rows), run)
    if folder is not None:
        save(atlas, folder)
    return atlas


def _kept(cell: Cell, store: Store | None) -> dict[str, Any] | None:
    """What this very cell gave before; None where there is nothing, or what is there is damaged."""
    try:
        found: dict[str, Any] | None = store and store.read_json(_name(cell), KIND, FORMAT, cell.hash)
    except (FileNotFoundError, FormatError):
        return None
    return found


def _name(cell: Cell) -> str:
    return f"cells/{cell.hash}.json"


def _measured(
    cells: Sequence[Cell], store: Store | None, workers: int, progress: bool | None
) -> dict[str, dict[str, Any]]:
    """What cells give, kept one by one; methods first, which take longest."""

    def load(_: str, cell: Cell) -> dict[str, Any] | None:
        found = _kept(cell, store)
        return None if found is None or jobs.to_do_again(found) else found

    def keep(_: str, cell: Cell, found: dict[str, Any]) -> None:
        if store is not None:
            store.write_json(_name(cell), found, KIND, FORMAT, cell.hash)

    ordered = {cell.hash: cell for cell in sorted(cells, key=_cheap)}
    executor = as_executor(None, min(workers, len(ordered)))
    try:
        found = resume(
            ordered,
            _carry_out if executor is None else _carry_out_alone,
            load=load,
            save=keep,
            executor=executor,
            what="measuring",
            progress=progress,
        )
    finally:
        # whoever ends this does not want to wait for cells that take minutes
        if executor is not None:
            executor.shutdown()
    return dict(zip(ordered, found, strict=True))


def _carry_out(cell: Cell) -> dict[str, Any]:
    return jobs.carry_out(cell)


def _carry_out_alone(cell: Cell) -> dict[str, Any]:
    """One thread a process: bit-equal results, and workers do not fight over cores."""
    torch.set_num_threads(1)
    return jobs.carry_out(cell)


def _steadied(name: str, names: Sequence[str]) -> bool:
    """Meta-evaluation is asked once per kind of input: on its trained task, or the only one there is."""
    same = [other for other in names if modality_of(other) == modality_of(name)]
    return name == next((other for other in same if not other.startswith("known/")), same[0])


def _cheap(cell: Cell) -> tuple[bool, bool]:
    return not isinstance(cell.metric, ExplainerMetric), not cell.steady


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
    words = f"python -m benchmarks.atlas FOLDER --size {size} --seed {seed} --workers {workers}".split()
    for option, names in (("--metric", metrics), ("--task", tasks), ("--explainer", explainers)):
        words += [word for name in names for word in (option, name)]
    return shlex.join(words + (["--device", device] if device else []))


def _device(device: str | None) -> str:
    if device is not None and device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return device or f"cpu, {platform.machine()}"
