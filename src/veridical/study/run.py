"""The verbs of studies: run one, go on with one, open one."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from veridical.core.progress import track
from veridical.errors import FormatError, InputError, StorageError, VeridicalWarning
from veridical.jobs import BlockedError, Lease, Processes, RayPool, Store, as_executor
from veridical.jobs import run as run_jobs
from veridical.study import worker
from veridical.study.cells import (
    CELLS,
    EXPLANATIONS,
    FAILURES,
    PREPARED,
    place,
    problem,
    relabel,
    write_failure,
)
from veridical.study.plan import StudyJob, StudyPlan, make_plan, refuse_old, torch_threads, write_plan
from veridical.study.resolve import load_task
from veridical.study.result import LOG, Study
from veridical.study.spec import StudySpec
from veridical.study.study_file import StudyFile, parse_study, read_study
from veridical.study.worker import FailedJobError, Result, Work
from veridical.values.task import Task

log = logging.getLogger("veridical")
AnyStudy = str | Path | Mapping[str, Any] | StudySpec | StudyFile
Watch = Callable[[dict[str, Any]], None]
FILE = "study.yaml"


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
        A local path or an fsspec URL; by default named after the file.
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
        Where the study has a mistake, told with its line, or no cell applies.
    FormatError
        Where the folder holds a study of version 0.2.
    StudyError
        Where another study is at work in the folder, or workers die one after the other.
    """
    file = study if isinstance(study, StudyFile) else read_study(study)
    plan = make_plan(file, allow_code)
    if next(plan.cells(), None) is None:
        reasons = (f"{s['explainer'] or s['metric']} on {s['task']}: {s['reason']}" for s in plan.skipped)
        raise InputError(f"not one cell of this study can be computed: {'; '.join(reasons)}")
    store = Store(folder if folder is not None else default_folder(study))
    return _computed(plan, file.text, store, executor, workers, allow_code, watch, progress)


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
        Where the folder holds no study, or one of version 0.2.
    """
    store = Store(folder)
    refuse_old(store)
    try:
        text = store.read(FILE).decode("utf-8", "replace")
    except FileNotFoundError:
        raise FormatError(f"{store.url} holds no study (there is no {FILE})") from None
    options: dict[str, Any] = {"executor": executor, "workers": workers, "allow_code": allow_code}
    return run(parse_study(text, FILE), folder, watch=watch, progress=progress, **options)


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
    """Beside the study file and named after it; plain data must say where to go."""
    if isinstance(study, str | Path):
        return str(Path(study).with_suffix("")) + "_study"
    raise InputError("a study that is not a file needs a folder to go to: run(study, folder)")


def _computed(
    plan: StudyPlan,
    text: str,
    store: Store,
    executor: str | Executor | None,
    workers: int,
    allow_code: bool,
    watch: Watch | None,
    progress: bool | None,
) -> Study:
    pool = as_executor(executor, workers, plan.seconds, plan.memory_mib)
    if pool is not None and "__main__" in plan.imports:
        raise InputError(
            "an explainer or metric of this study is defined in the script or notebook itself, which "
            "other processes do not run; move it to a module, or use executor='in-process'"
        )
    if pool is None and (plan.seconds, plan.memory_mib) != (None, None):
        warnings.warn("limits are not watched in this process; use workers", VeridicalWarning, stacklevel=3)
    try:
        refuse_old(store)
        with Lease(store, plan.digest, plan.name):
            relabel(plan, store)
            if not store.exists(FILE) or store.read(FILE) != text.encode():
                store.write(FILE, text.encode())
            write_plan(plan, store)
            _Run(plan, store, pool, allow_code, watch, progress).run()
    except StorageError as error:
        study = _complete(plan, store) if error.read_only else None
        if study is None:
            raise
        return study
    finally:
        # one that was given may be used again
        if pool is not None and pool is not executor:
            pool.shutdown()
        worker.forget()
    return Study(store)


def _complete(plan: StudyPlan, store: Store) -> Study | None:
    """The study of a folder that cannot be written to, if nothing needs to be."""
    try:
        study = Study(store)
    except FormatError:
        return None
    return study if study.plan.digest == plan.digest and study.status().complete else None


class _Run:
    """One run of a plan into a folder; a cell whose file is there and sound is not computed again."""

    def __init__(
        self,
        plan: StudyPlan,
        store: Store,
        pool: Executor | None,
        allow_code: bool,
        watch: Watch | None,
        progress: bool | None,
    ) -> None:
        self.plan, self.store, self.pool, self.allow_code = plan, store, pool, allow_code
        self.watch, self.progress = watch, progress
        self.there = store.hashes(CELLS) | store.hashes(EXPLANATIONS) | store.hashes(PREPARED)
        self.damaged = self._remove_damaged()
        self.failures = store.hashes(FAILURES)
        self.cells = sum(1 for _ in plan.cells())
        self.known = sum(self._has(job) for job in plan.cells())
        self.done = self.failed = 0
        self.open: dict[str, int] = {}
        """Cells still to do of each map that is dropped after the last one."""
        self.placed: tuple[str, Task | None] = ("", None)
        self.log_name = f"{LOG}/{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:8]}.jsonl"
        self.lines: list[str] = []

    def run(self) -> None:
        """Carry out everything that is not there yet; Ctrl-C ends early and keeps what is finished."""
        about: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "known": self.known}
        self._log("planned", **about, folder=self.store.url, uncached=self.plan.uncached())
        bar: Any = track(range(self.cells - self.known + 1), self.plan.name, self.progress, self._failed)
        next(bar)
        running = run_jobs(self._to_do(), worker.carry_out, self.pool, payload=self._work, event=self._event)
        try:
            for job, result in running:
                if isinstance(result, Exception):
                    self._record(job, result)
                else:
                    self._keep(job, result)
                if job.kind == "score":
                    next(bar, None)
        except KeyboardInterrupt:
            log.warning("interrupted; the finished cells are kept")
        finally:
            running.close()
            bar.close()
            self._log("finished")
            if self.lines:
                self.store.append(self.log_name, self.lines)

    # --- which jobs ---------------------------------------------------------------------------------

    def _remove_damaged(self) -> set[str]:
        """Take away files that are not what their jobs left, and say so; they are made again."""
        found = set()
        for job in (job for job in self.plan.jobs() if job.hash in self.there):
            try:
                wrong = problem(self.store, job)
            except FileNotFoundError:
                wrong = ""  # another run, or another ending of the name
            if wrong is None:
                continue
            self.there.discard(job.hash)
            if wrong:
                log.warning("%s; it is made again", wrong)
                self.store.delete(place(job))
                found.add(job.hash)
        return found

    def _has(self, job: StudyJob) -> bool:
        return job.hash in self.there and self.plan.cached(job)

    def _to_do(self) -> Iterator[StudyJob]:
        """What is not there, none before what it needs; a preparation or map that no cell needs is left."""
        wanted = set(self.damaged)
        for job in self.plan.cells():
            if not self._has(job):
                wanted.update(job.needs)
        yield from (job for job in self.plan.preparations() if job.hash in wanted and not self._has(job))
        for group in self.plan.groups():
            todo = [job for job in group.scores if not self._has(job)]
            explain = group.explain
            if explain is not None and explain.hash in wanted:
                self.open[explain.hash] = sum(explain.hash in job.needs for job in todo)
                # a damaged map that no cell needs any more is part of the study all the same
                if not self._has(explain) and (self.open[explain.hash] or self.plan.keep_explanations):
                    yield explain
            yield from todo

    def _work(self, job: StudyJob) -> Work:
        plan, planned = self.plan, self.plan.task(job.task)
        metric = plan.metric(job.metric) if job.metric else None
        prepared: dict[str, Any] = {}
        if metric is not None:
            facts = metric.prepares[plan.seeds.index(job.seed)]
            prepared = {plan.preparation(planned, one).hash: one for one in facts}
        elif job.kind == "prepare":
            metric = next(m for m in plan.metrics if any(dict(job.facts) in some for some in m.prepares))
        files = {need: file for need in job.needs if (file := self._file(need, prepared)) is not None}
        return Work(
            job,
            planned,
            plan.explainer(job.explainer) if job.explainer else None,
            metric,
            prepared,
            plan.settings(job) if job.kind == "score" else {},
            files,
            plan.threads,
            plan.device,
            self.allow_code,
            plan.imports,
            None if self.store.local is None or not self._local else str(self.store.local / PREPARED),
            None if planned.ranged or not isinstance(self.pool, RayPool) else self._place(job.task),
        )

    @property
    def _local(self) -> bool:
        """Whether workers see the files of this machine."""
        own = (Processes, ProcessPoolExecutor, ThreadPoolExecutor)
        return self.pool is None or isinstance(self.pool, own)

    def _file(self, need: str, prepared: Mapping[str, Any]) -> Path | bytes | None:
        if need in prepared:
            name = place(StudyJob(need, kind="prepare", facts=prepared[need]))
        else:
            name = place(StudyJob(need, kind="explain"))
        if self.store.local is not None and self._local:
            return self.store.local / name
        try:
            return self.store.read(name)
        except FileNotFoundError:
            return None

    def _place(self, label: str) -> Task | None:
        """A task that this process loads and places on the cluster, for workers that cannot load it."""
        assert isinstance(self.pool, RayPool)
        if self.placed[0] != label:
            plan, planned = self.plan, self.plan.task(label)
            how: dict[str, Any] = {
                "threads": plan.threads,
                "device": plan.device,
                "allow_code": self.allow_code,
            }
            try:
                with torch_threads(plan.threads):
                    task = load_task(planned.choice, rows=planned.rows, **how)
                self.pool.place(task)
                self.placed = label, task
            except Exception as error:  # a model that does not pickle, or a device this machine lacks
                log.warning("every worker loads '%s' by itself, it cannot be placed: %s", label, error)
                self.placed = label, None
        return self.placed[1]

    # --- what became of them ------------------------------------------------------------------------

    def _keep(self, job: StudyJob, result: Result) -> None:
        for hash, content in result.more.items():
            self.store.write(place(StudyJob(hash, kind="explain")), content)
        self.store.write(place(job), result.content)
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
        step, cause = ("before", error.cause) if isinstance(error, BlockedError) else ("score", error)
        trace = cause.trace if isinstance(cause, FailedJobError) else ""
        told = (
            str(cause)
            if isinstance(cause, FailedJobError | TimeoutError | MemoryError)
            else f"{type(cause).__name__}: {cause}"
        )
        if job.kind == "score":
            self.failed += 1
            write_failure(self.store, job, step, told, trace)
            if job.hash in self.there:
                self.store.delete(place(job))
            self._close(job)
        seconds = (
            cause.seconds if isinstance(error, FailedJobError) and isinstance(cause, FailedJobError) else 0.0
        )
        self._log("failed", job, error=told, traceback=trace, seconds=round(seconds, 6))

    def _close(self, job: StudyJob) -> None:
        """Drop a map that has served its last cell, where the study does not keep them."""
        for need in job.needs:
            if need in self.open:
                self.open[need] -= 1
                if not self.open[need] and not self.plan.keep_explanations:
                    self.store.delete(f"{EXPLANATIONS}/{need}.safetensors")

    # --- what is told -------------------------------------------------------------------------------

    def _failed(self) -> str:
        return f"{self.failed} failed"

    def _event(self, what: str, job: StudyJob) -> None:
        self._log(what, job)

    def _log(self, event: str, job: StudyJob | None = None, **more: Any) -> None:
        """A line of the log; what ended is kept in the folder too, apart from what must be equal."""
        done = self.known + self.done
        left = self.cells - done - self.failed
        line: dict[str, Any] = {"time": round(time.time(), 3), "event": event, "study": self.plan.name}
        line |= {"cells": self.cells, "done": done, "failed": self.failed, "left": left}
        if job is not None:
            line |= {"kind": job.kind, "hash": job.hash, "task": job.task, "explainer": job.explainer}
            line |= {"metric": job.metric, "seed": job.seed, "shard": list(job.shard)}
        line |= more
        if self.watch is not None:
            self.watch(line)
        if event not in ("started", "finished"):
            self.lines.append(json.dumps(line))
            if self.store.local is not None:
                self.store.append(self.log_name, self.lines)
                self.lines = []
