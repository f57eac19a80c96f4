"""The verbs of studies: run one, go on with one, open one."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veridical.core.progress import track
from veridical.errors import FormatError, InputError, StorageError, StudyError, warn
from veridical.jobs import BlockedError, Lease, Processes, Store, as_executor
from veridical.jobs import run as run_jobs
from veridical.study import cells, worker
from veridical.study.cells import FAILURES, FOLDERS, SOURCE, place
from veridical.study.plan import (
    StudyJob,
    StudyPlan,
    make_plan,
    read_plan,
    refuse_other_versions,
    write_plan,
)
from veridical.study.result import LOG, Study
from veridical.study.spec import StudySpec
from veridical.study.study_file import StudyFile, parse_study, read_study
from veridical.study.worker import FailedJobError, Result, Work

log = logging.getLogger("veridical")
AnyStudy = str | Path | Mapping[str, Any] | StudySpec | StudyFile
Watch = Callable[[dict[str, Any]], None]
INTERRUPTED = "interrupted; the finished cells are kept"
LOCAL = (Processes, ProcessPoolExecutor, ThreadPoolExecutor)
"""Executors whose workers see the files of this machine."""


def run(
    study: AnyStudy,
    folder: str | Path | None = None,
    *,
    executor: str | Executor | None = None,
    workers: int = 2,
    allow_code: bool = False,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> Study:
    """Compute every cell of a study that is not in the folder yet.

    Parameters
    ----------
    study
        The path of a study file, the same as plain data, or a `StudySpec`.
    folder
        A path; by default named after the file.
    executor
        "in-process", "threads", "processes" (the default for more than one worker), "ray", or an executor of
        `concurrent.futures`, such as `veridical.jobs.RayPool(...)`.
    workers
        How many processes.
    allow_code
        Whether import paths in the study may run.
    watch
        Called with every line of the log, as plain data.
    progress
        Whether a bar is shown; by default at a terminal.

    Returns
    -------
    Study
        The study. Cells that raised are in `.failures`; the others went on. After Ctrl-C what is finished is
        kept.

    Raises
    ------
    InputError
        Where the study has a mistake, reported with its line, or no cell applies.
    FormatError
        Where the folder holds a study of another version.
    StudyError
        Where another study is at work in the folder, or workers die one after the other.
    """
    file = study if isinstance(study, StudyFile) else read_study(study)
    plan = make_plan(file, allow_code)
    if next(plan.cells(), None) is None:
        reasons = (f"{s['explainer'] or s['metric']} on {s['task']}: {s['reason']}" for s in plan.skipped)
        raise InputError(f"not one cell of this study can be computed: {'; '.join(reasons)}")
    store = Store(folder if folder is not None else default_folder(study))
    pool = as_executor(executor, workers, plan.seconds)
    if pool is not None and "__main__" in plan.imports:
        raise InputError(
            "an explainer or metric of this study is defined in the script or notebook itself, which "
            "other processes do not run; move it to a module, or use executor='in-process'"
        )
    if pool is None and plan.seconds is not None:
        warn("limits are not watched in this process; use workers")
    refuse_other_versions(store)
    try:
        with Lease(store, plan.digest, plan.name):
            cells.relabel(plan, store)
            if not store.exists(SOURCE) or store.read(SOURCE) != file.text.encode():
                store.write(SOURCE, file.text.encode())
            write_plan(plan, store)
            _Run(plan, store, pool, allow_code, watch, progress).run()
    except StudyError as error:
        raise StudyError(str(error).replace("FOLDER", str(store.folder))) from error.__cause__
    except StorageError as error:
        if not error.read_only or not _complete(plan, store):
            raise
    finally:
        # one that was given may be used again
        if pool is not None and pool is not executor:
            pool.shutdown()
        worker.forget()
    return Study(store)


def _complete(plan: StudyPlan, store: Store) -> bool:
    """Whether a folder that cannot be written to needs no writing."""
    try:
        study = Study(store)
    except FormatError:
        return False
    return study.plan.digest == plan.digest and study.status().complete


def resume(
    folder: str | Path,
    *,
    executor: str | Executor | None = None,
    workers: int = 2,
    allow_code: bool = False,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> Study:
    """Go on with the study of a folder: cells that are missing, damaged or have failed are computed.

    Parameters are those of `run`.

    Raises
    ------
    FormatError
        Where the folder holds no study, or one of another version.
    """
    store = Store(folder)
    refuse_other_versions(store)
    try:
        text = store.read(SOURCE).decode("utf-8", "replace")
    except FileNotFoundError:
        raise FormatError(f"{store.folder} holds no study (there is no {SOURCE})") from None
    with suppress(FormatError):
        for sentence in cells.source_problems(read_plan(store), store):
            log.warning("%s", sentence)
    options: dict[str, Any] = {"executor": executor, "workers": workers, "allow_code": allow_code}
    return run(parse_study(text, SOURCE), folder, watch=watch, progress=progress, **options)


def open(folder: str | Path) -> Study:
    """Open the study in a folder, finished or not.

    Parameters
    ----------
    folder : str or Path
        The folder of the study.

    Returns
    -------
    Study
        The study, which reads what is there when it is read.
    """
    return Study(folder)


def default_folder(study: Any) -> str:
    """Beside the study file and named after it; plain data needs a folder."""
    if isinstance(study, str | Path):
        return str(Path(study).with_suffix("")) + "_study"
    raise InputError("a study that is not a file needs a folder to go to: run(study, folder)")


@dataclass(eq=False)
class _Run:
    """One run of a plan into a folder; a cell whose file is there and sound is not computed again."""

    plan: StudyPlan
    store: Store
    pool: Executor | None
    allow_code: bool
    watch: Watch | None
    progress: bool | None

    def __post_init__(self) -> None:
        plan, store = self.plan, self.store
        self.there = {hash for folder in FOLDERS.values() for hash in store.hashes(folder)}
        self.damaged = self._remove_damaged()
        self.failures = store.hashes(FAILURES)
        self.cells = sum(1 for _ in plan.cells())
        self.known = sum(self._has(job) for job in plan.cells())
        self.done = self.failed = 0
        self.open: Counter[str] = Counter()
        """Cells still to do of each map."""
        self.how = plan.model_copy(update={"tasks": (), "explainers": (), "metrics": (), "skipped": ()})
        """The plan as workers need it: how models are run, and no axes."""
        self.log_name = f"{LOG}/{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:8]}.jsonl"

    def run(self) -> None:
        """Carry out everything that is not there yet; Ctrl-C ends early and keeps what is finished."""
        about: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "known": self.known}
        self._log("planned", **about, folder=str(self.store.folder), uncached=self.plan.uncached)
        left = range(self.cells - self.known + 1)
        bar: Any = track(left, self.plan.name, self.progress, lambda: f"{self.failed} failed")
        next(bar)
        running = run_jobs(self._to_do(), worker.carry_out, self.pool, payload=self._work, event=self._log)
        try:
            for job, result in running:
                if isinstance(result, Exception):
                    self._record(job, result)
                else:
                    self._keep(job, result)
                if job.kind == "score":
                    next(bar, None)
        except KeyboardInterrupt:
            log.warning(INTERRUPTED)
        finally:
            running.close()
            bar.close()
            self._log("finished")

    # --- which jobs ---------------------------------------------------------------------------------

    def _remove_damaged(self) -> set[str]:
        """Take away files that are not what their jobs left, with a warning; they are made again."""
        found = set()
        for job in (job for job in self.plan.jobs() if job.hash in self.there):
            try:
                wrong = cells.problem(self.store, job)
            except FileNotFoundError:  # another run has dropped it
                self.there.discard(job.hash)
                continue
            if wrong is not None:
                log.warning("%s; it is made again", wrong)
                self.there.discard(job.hash)
                self.store.delete(place(job.kind, job.hash))
                found.add(job.hash)
        return found

    def _has(self, job: StudyJob) -> bool:
        return job.hash in self.there and job.cached

    def _to_do(self) -> Iterator[StudyJob]:
        """What is not there, none before what it needs; a preparation that no cell needs is left."""
        wanted = set(self.damaged)
        for job in self.plan.cells():
            if not self._has(job):
                wanted.update(job.needs)
        yield from (job for job in self.plan.preparations() if job.hash in wanted and not self._has(job))
        for group in self.plan.groups():
            todo = [job for job in group.scores if not self._has(job)]
            explain = group.explain
            if explain is not None:
                self.open[explain.hash] = sum(explain.hash in job.needs for job in todo)
                # a map that no cell needs any more is part of the study all the same
                if not self._has(explain) and (self.open[explain.hash] or self.plan.keep_explanations):
                    yield explain
            yield from todo

    def _work(self, job: StudyJob) -> Work:
        prepared: dict[str, Mapping[str, Any]] = {}
        if job.metric is not None:
            facts = job.metric.prepares[self.plan.seeds.index(job.seed)]
            prepared = {self.plan.preparation(job.task, one).hash: one for one in facts}
        elif job.kind == "prepare":
            metric = next(m for m in self.plan.metrics if any(job.facts in some for some in m.prepares))
            job = replace(job, metric=metric)
        where = self.store.folder if self.pool is None or isinstance(self.pool, LOCAL) else None
        files: dict[str, Path | bytes] = {}
        for need in job.needs:
            name = place("prepare" if need in prepared else "explain", need)
            with suppress(FileNotFoundError):
                files[need] = self.store.read(name) if where is None else where / name
        return Work(job, self.how, prepared, files, self.allow_code)

    # --- what became of them ------------------------------------------------------------------------

    def _keep(self, job: StudyJob, result: Result) -> None:
        self.store.write(place(job.kind, job.hash), result.content)
        if job.kind == "score":
            self.done += 1
            if job.hash in self.failures:
                self.store.delete(f"{FAILURES}/{job.hash}.json")
            self._close(job)
        cost = {"forward": result.cost.forward, "backward": result.cost.backward}
        about: dict[str, Any] = {"host": result.host, "pid": result.pid, "warnings": list(result.warnings)}
        self._log("done", job, seconds=round(result.seconds, 6), **cost, **about)

    def _record(self, job: StudyJob, error: Exception) -> None:
        """Record a failed cell; one that rests on a failed explanation or preparation failed before."""
        cause = error.cause if isinstance(error, BlockedError) else error
        message, trace, seconds = f"{type(cause).__name__}: {cause}", "", 0.0
        if isinstance(cause, FailedJobError):
            message, trace, seconds = str(cause), cause.trace, cause.seconds if cause is error else 0.0
        elif isinstance(cause, TimeoutError):
            message = str(cause)
        if job.kind == "score":
            self.failed += 1
            cells.write_failure(self.store, job, message, trace)
            if job.hash in self.there:
                self.store.delete(place(job.kind, job.hash))
            self._close(job)
        self._log("failed", job, error=message, traceback=trace, seconds=round(seconds, 6))

    def _close(self, job: StudyJob) -> None:
        """Drop a map that has served its last cell, where the study does not keep them."""
        for need in job.needs if not self.plan.keep_explanations else ():
            self.open[need] -= 1
            if not self.open[need]:
                self.store.delete(place("explain", need))

    def _log(self, event: str, job: StudyJob | None = None, **more: Any) -> None:
        """A line of the log; what ended is kept in the folder too, apart from what must be equal."""
        done = self.known + self.done
        line: dict[str, Any] = {"time": round(time.time(), 3), "event": event, "study": self.plan.name}
        line |= {"cells": self.cells, "done": done, "failed": self.failed}
        line["left"] = self.cells - done - self.failed
        if job is not None:
            line |= {"kind": job.kind, "hash": job.hash, **job.labels, "shard": list(job.shard)}
        line |= more
        if self.watch is not None:
            self.watch(line)
        if event not in ("started", "finished"):
            self.store.append(self.log_name, [json.dumps(line)])
