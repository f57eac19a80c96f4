"""A study as it is read: scores, tables, failures, and how far it is."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from veridical.core.files import understood
from veridical.errors import FormatError, InputError
from veridical.gef.iso_gef import joined_scores
from veridical.jobs import Store
from veridical.study.cells import (
    CELLS,
    COLUMNS,
    FAILURES,
    from_parquet,
    place,
    problem,
    read_failure,
    read_map,
)
from veridical.study.plan import StudyJob, read_plan
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.tables import summary_row, write_table

if TYPE_CHECKING:
    import pandas as pd


LOG = "log"


class CellName(NamedTuple):
    """What a cell is called: the labels of its task, explainer and metric, and its seed."""

    task: str
    explainer: str
    metric: str
    seed: int


@dataclass(frozen=True)
class FailedCell:
    """A cell that raised, or a map or preparation that it needs: on which rows, and the traceback."""

    name: CellName
    shard: tuple[int, int]
    error: str
    traceback: str


@dataclass(frozen=True)
class Progress:
    """How many cells a study has and what became of them; `stale` files belong to no cell of the plan."""

    cells: int
    done: int
    failed: int
    stale: int
    skipped: int
    seconds: float
    damaged: int = 0

    @property
    def complete(self) -> bool:
        """Whether every cell has its scores."""
        return self.done == self.cells

    def __str__(self) -> str:
        left = self.cells - self.done - self.failed
        parts = [f"{self.done} of {self.cells} cells done"]
        parts += [f"{self.failed} failed"] * bool(self.failed)
        parts += [f"{left} to do"] * bool(left)
        parts += [f"{self.damaged} files damaged"] * bool(self.damaged)
        parts += [f"{self.skipped} combinations do not apply"] * bool(self.skipped)
        parts += [f"{self.stale} files of earlier plans"] * bool(self.stale)
        return ", ".join(parts) + f"; {self.seconds:.1f} s of work"


class Study:
    """A study in its folder. Files are read when they are needed, so it also shows one that is running.

    Parameters
    ----------
    folder
        A path or a `Store`.
    """

    def __init__(self, folder: str | Path | Store) -> None:
        self.store = folder if isinstance(folder, Store) else Store(folder)
        self.plan = read_plan(self.store)
        self._checked: dict[str, bool] = {}

    @property
    def name(self) -> str:
        """The study's own name."""
        return self.plan.name

    @cached_property
    def cells(self) -> dict[CellName, list[StudyJob]]:
        """Every cell of the plan, with its shards."""
        found: dict[CellName, list[StudyJob]] = {}
        for job in self.plan.cells():
            found.setdefault(CellName(**job.labels), []).append(job)
        return found

    # --- scores -------------------------------------------------------------------------------------

    def __getitem__(self, name: tuple[str, str, str, int]) -> Scores:
        cell = CellName(*name)
        jobs = self.cells.get(cell)
        if jobs is None:
            raise InputError(f"the study has no cell {cell}: it does not apply, or is called otherwise")
        parts = []
        try:
            for job in jobs:
                path = place(job.kind, job.hash)
                content = self.store.read(path)
                parts.append(from_parquet(content, f"{self.store.folder}/{path}", job.hash, job.samples))
        except FileNotFoundError:
            why = next((f.error for f in self.failures if f.name == cell), "it has not been computed yet")
            raise InputError(f"there are no scores of {cell}: {why}") from None
        return joined_scores(parts)

    def __iter__(self) -> Iterator[CellName]:
        """The names of the cells whose scores are all there."""
        there = set(self._there())
        return (name for name, jobs in self.cells.items() if all(job.hash in there for job in jobs))

    def explanation(self, task: str, explainer: str, seed: int = 0, shard: int = 0) -> Explanation:
        """The maps that the cells rest on, where the study keeps them."""
        for job in (group.explain for group in self.plan.groups()):
            if job is None or (job.labels["task"], job.labels["explainer"]) != (task, explainer):
                continue
            same_seed = job.seed == seed or not job.task.draws[explainer]
            if same_seed and job.shard[0] == shard * self.plan.size(job.task):
                return read_map(self.store.read(place(job.kind, job.hash)), job.hash, job.samples)
        raise InputError(f"the study explains no '{task}' with '{explainer}' at seed {seed}, shard {shard}")

    # --- tables -------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """One row per sample and cell: task, explainer, metric, seed, id, value, direction, flags."""
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq

        parts = []
        for hash in self._there(must_be_sound=True):
            content = io.BytesIO(self.store.read(place("score", hash)))
            with understood(place("score", hash)):
                parts.append(pq.read_table(content, columns=list(COLUMNS)).replace_schema_metadata(None))
        if not parts:
            return pd.DataFrame(columns=list(COLUMNS))
        return pa.concat_tables(parts).to_pandas()

    def summary(self) -> pd.DataFrame:
        """One row per cell: mean with its interval over samples, direction, flags, and cost."""
        import pandas as pd

        self._there(must_be_sound=True)  # a damaged cell is refused, not left out
        return pd.DataFrame({**name._asdict(), **summary_row(self[name])} for name in self)

    def across(self) -> pd.DataFrame:
        """One row per explainer and metric over all tasks: mean rank (1 is best), where it is best, means.

        A rank is that of the mean over samples and seeds among the explainers that have one on the task; ties
        share theirs. Means of different tasks are not averaged: they are on scales of their own.
        """
        import pandas as pd

        cells = self.summary()
        if cells.empty:
            return pd.DataFrame()
        found = (
            cells.groupby(["task", "explainer", "metric", "direction"], sort=False)["mean"]
            .mean()
            .reset_index()
        )
        better = found["mean"].where(found["direction"] == "higher", -found["mean"])
        among = better.groupby([found["task"], found["metric"]])
        found = found.assign(rank=among.rank(ascending=False), best=better == among.transform("max"))
        by = found.groupby(["explainer", "metric"], sort=False)
        table = by.agg(mean_rank=("rank", "mean"), best_in=("best", "sum"), tasks=("rank", "count"))
        means = found.pivot(index=["explainer", "metric"], columns="task", values="mean")
        return table.join(means[list(dict.fromkeys(found["task"]))]).reset_index()

    def export(self, path: str | Path) -> Path:
        """Write `frame()` as .csv or .parquet. In a CSV, text that a spreadsheet would run is quoted."""
        path = Path(path)
        if path.suffix not in (".csv", ".parquet"):
            raise InputError(f"a study is exported as .csv or .parquet, got '{path.name}'")
        frame = self.frame()
        if path.suffix == ".csv":
            frame["flags"] = [";".join(reasons) for reasons in frame["flags"]]
        return write_table(frame, path)

    # --- state --------------------------------------------------------------------------------------

    @property
    def failures(self) -> list[FailedCell]:
        """The cells that raised, with their tracebacks."""
        failed = self.store.hashes(FAILURES) - self.store.hashes(CELLS)
        return [
            FailedCell(name, job.shard, *read_failure(self.store, job))
            for name, jobs in self.cells.items()
            for job in jobs
            if job.hash in failed
        ]

    @property
    def timings(self) -> list[dict[str, Any]]:
        """Seconds, host and process of every job that ended, in every run."""
        found = []
        for name in self.store.files(LOG):
            for line in self.store.read(f"{LOG}/{name}").decode("utf-8", "replace").splitlines():
                with suppress(json.JSONDecodeError):  # a killed run may have left half a line
                    found.append(json.loads(line))
        ended = [line for line in found if isinstance(line, dict)]
        return [line for line in ended if isinstance(line.get("seconds"), int | float)]

    def status(self) -> Progress:
        """How far the study is."""
        planned = Counter(job.hash for jobs in self.cells.values() for job in jobs)
        files = self.store.hashes(CELLS)
        done = len(set(self._there()))
        return Progress(
            cells=planned.total(),
            done=done,
            failed=len(self.failures),
            stale=len(files - set(planned)),
            skipped=len(self.plan.skipped),
            seconds=sum(line["seconds"] for line in self.timings),
            damaged=len(files & set(planned)) - done,
        )

    def __repr__(self) -> str:
        return f"Study '{self.name}' in {self.store.folder}: {self.status()}"

    def _there(self, must_be_sound: bool = False) -> list[str]:
        """The hashes of cells that are there and sound.

        Each file is checked once, but anew before its scores are read: it may have changed.
        """
        there = self.store.hashes(CELLS)
        found = []
        for job in (job for jobs in self.cells.values() for job in jobs if job.hash in there):
            if must_be_sound or not self._checked.get(job.hash):
                wrong = problem(self.store, job)
                self._checked[job.hash] = wrong is None
                if wrong is not None and must_be_sound:
                    raise FormatError(f"{wrong}; veridical resume {self.store.folder} makes it again")
            if self._checked[job.hash]:
                found.append(job.hash)
        return found
