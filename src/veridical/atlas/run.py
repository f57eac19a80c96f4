"""Measuring the atlas: cells that know nothing of each other, done once, kept, and put together."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from veridical._version import __version__
from veridical.api import as_metric, labelled
from veridical.atlas import jobs
from veridical.atlas.bench import SIZES, Size, modality_of, tasks_of
from veridical.atlas.jobs import Cell
from veridical.atlas.result import Atlas
from veridical.core.progress import track
from veridical.errors import InputError, VeridicalError, unknown_name
from veridical.explainers import as_explainer
from veridical.metrics.base import ExplainerMetric
from veridical.metrics.base import registry as metric_registry

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
    home = None if folder is None else Path(folder) / "cells"
    done = _kept(cells, home, failed=only_kept)
    if only_kept and not done:
        raise InputError(f"'{folder}' holds no finished cell of these metrics, tasks, size and seed")
    if not only_kept:
        done |= _measured([cell for cell in cells if cell.address not in done], home, workers, progress)
    results = [done.get(cell.address) or jobs.waiting(cell) for cell in cells]
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
    rows = [row for found in results for row in found["rows"] if found["label"]]
    near = [row for found in results for row in found["rows"] if not found["label"]]
    atlas = Atlas(rows, near, run)
    if folder is not None:
        atlas.save(folder)
    return atlas


def _kept(cells: Sequence[Cell], folder: Path | None, *, failed: bool) -> dict[str, dict[str, Any]]:
    """What cells gave before, by their address."""
    if folder is None:
        return {}
    return {c.address: found for c in cells if (found := jobs.kept(c, folder, failed=failed)) is not None}


def _measured(
    cells: Sequence[Cell], folder: Path | None, workers: int, progress: bool | None
) -> dict[str, dict[str, Any]]:
    """What cells give now, kept one by one; methods first, which take longest."""
    done = {}
    for cell, found in _carried_out(sorted(cells, key=_cheap), workers, progress):
        done[cell.address] = found
        if folder is not None:
            jobs.keep(cell, found, folder)
    return done


def _carried_out(
    cells: Sequence[Cell], workers: int, progress: bool | None
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if workers == 1 or len(cells) < 2:
        for cell in track(cells, "measuring", progress):
            yield cell, jobs.carry_out(cell)
        return
    # a fresh process a worker: torch's threads do not survive a fork
    before = set(active_children())
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_alone) as pool:
        asked = {pool.submit(jobs.carry_out, cell): cell for cell in cells}
        ended = as_completed(asked)
        try:
            for _ in track(range(len(asked)), "measuring", progress):
                job = next(ended)
                yield asked[job], job.result()
        except BrokenProcessPool as error:
            raise VeridicalError(
                f"one of {workers} processes died, of too little memory perhaps; finished cells are kept: "
                "run it again with fewer workers"
            ) from error
        except BaseException:
            # whoever ends this does not want to wait for cells that take minutes
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(active_children()) - before:
                worker.terminate()
            raise


def _alone() -> None:
    """One thread a process: bit-equal results, and workers do not fight over cores."""
    torch.set_num_threads(1)


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
    words = f"veridical atlas FOLDER --size {size} --seed {seed} --workers {workers}".split()
    for option, names in (("--metric", metrics), ("--task", tasks), ("--explainer", explainers)):
        words += [word for name in names for word in (option, name)]
    return shlex.join(words + (["--device", device] if device else []))


def _device(device: str | None) -> str:
    if device is not None and device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return device or f"cpu, {platform.machine()}"
