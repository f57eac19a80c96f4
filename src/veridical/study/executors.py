"""Who carries out the jobs of a study: the protocol, this very process, and processes of this machine.

An executor is told nothing of tasks, plans or retries: the runner decides which job is ready, keeps at most
`slots` of them submitted, and gives lost ones out again. So an executor is four short methods:

    start(context)   once, before anything else
    submit(job)      take a job and return at once; never called with `slots` jobs in hand
    wait()           block until something ends; every result since the last call, in any order
    close()          give back all workers; called once, also after an error or Ctrl-C

A worker, wherever it runs, does `Workshop(context).carry_out(job)`, which never raises: what goes wrong
inside is a result with status "failed". Only a worker's death is for the executor to notice: it answers
`Result(job.address, "lost", error=...)` and replaces the worker.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from veridical.core.allowed import Count
from veridical.core.settings import check_settings
from veridical.errors import InputError
from veridical.study.cells import Context, Job, Result, Status
from veridical.study.limits import GRACE_SECONDS, passed

if TYPE_CHECKING:
    from veridical.study.worker_state import Workshop


class Executor(Protocol):
    """Where jobs are carried out; see the head of this file."""

    @property
    def slots(self) -> int:
        """How many jobs may be submitted at once; read again before every submission, so it may change."""
        ...

    def start(self, context: Context) -> None:
        """Make workers ready for one study."""
        ...

    def submit(self, job: Job) -> None:
        """Take a job without waiting for it."""
        ...

    def wait(self) -> list[Result]:
        """Block until at least one submitted job has ended."""
        ...

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        ...


def refuse_scripts(context: Context) -> None:
    """Say that other processes do not run the script in which something of the study is defined."""
    if "__main__" in context.imports:
        raise InputError(
            "an explainer or metric of this study is defined in the script or notebook itself, which "
            "other processes do not run; move it to a module, or use executor='in-process'"
        )


class InProcess:
    """Every job in this process, one after the other."""

    slots = 1

    def __init__(self) -> None:
        self._workshop: Workshop | None = None
        self._jobs: list[Job] = []

    def start(self, context: Context) -> None:
        from veridical.study.worker_state import Workshop

        self._workshop = Workshop(context)

    def submit(self, job: Job) -> None:
        self._jobs.append(job)

    def wait(self) -> list[Result]:
        assert self._workshop is not None
        return [self._workshop.carry_out(self._jobs.pop(0))]

    def close(self) -> None:
        if self._workshop is not None:
            self._workshop.close()


@dataclass(eq=False)
class _Worker:
    """One process, the job it has in hand, and whether it has died."""

    process: subprocess.Popen[str]
    job: Job | None = None
    gone: bool = False
    ready: bool = False
    since: float = 0.0
    overdue: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, job: Job) -> bool:
        """Take a job in hand, unless the process has died; its death is then reported with the job."""
        with self.lock:
            if not self.gone:
                self.job, self.since = job, time.monotonic()
            return not self.gone


@dataclass
class LocalProcesses:
    """`workers` processes of this machine, each started afresh and replaced when it dies.

    Workers are `python -m veridical.study.worker`: jobs go in and results come out as lines of JSON. They do
    not import the script that started the study, so a script needs no `if __name__ == "__main__"`, and they
    end when the process that started them does.
    """

    workers: Count = 2
    _idle: list[_Worker] = field(default_factory=list, init=False, repr=False)
    _all: list[_Worker] = field(default_factory=list, init=False, repr=False)
    _ended: queue.SimpleQueue[tuple[_Worker, Result]] = field(
        default_factory=queue.SimpleQueue, init=False, repr=False
    )
    _context: Context | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def slots(self) -> int:
        return self.workers

    def start(self, context: Context) -> None:
        refuse_scripts(context)
        if context.folder.startswith("memory:"):
            raise InputError("a folder in memory is seen by this process only; use executor='in-process'")
        self._context = context
        self._idle = [self._hire() for _ in range(self.workers)]

    def submit(self, job: Job) -> None:
        worker = self._idle.pop()
        while not worker.take(job):
            self._all.remove(worker)
            worker = self._hire()
        assert worker.process.stdin is not None
        # if it has died, the thread that reads from it says so
        with suppress(OSError):
            worker.process.stdin.write(json.dumps(job.to_json()) + "\n")
            worker.process.stdin.flush()

    def wait(self) -> list[Result]:
        results: list[Result] = []
        while not results or not self._ended.empty():
            try:
                worker, result = self._ended.get(timeout=self._look)
            except queue.Empty:
                self._end_overdue()
                continue
            if worker.gone:
                self._all.remove(worker)
                worker = self._hire()
            self._idle.append(worker)
            results.append(result)
        return results

    @property
    def _look(self) -> float | None:
        """How often to look for workers that do not hear of their limit; never, where there is none."""
        return None if self._context is None or "seconds" not in self._context.limits else 1.0

    def _end_overdue(self) -> None:
        """Kill a worker whose job should have ended long ago: a native routine hears no signal."""
        assert self._context is not None
        most = self._context.limits["seconds"] + GRACE_SECONDS
        for worker in self._all:
            with worker.lock:
                late = worker.ready and worker.job is not None and time.monotonic() - worker.since > most
                if late and not worker.gone:
                    worker.overdue = True
                    worker.process.kill()

    def close(self) -> None:
        for worker in self._all:
            worker.process.kill()
        for worker in self._all:
            worker.process.wait()
            for pipe in (worker.process.stdin, worker.process.stdout):
                # a job that the dead worker never read may still be in it
                with suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        self._all, self._idle = [], []

    def _hire(self) -> _Worker:
        assert self._context is not None
        # -P keeps the current folder off the path: what this process can import, they can, and no more
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "veridical.study.worker", json.dumps(self._context.to_json())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=env,
            # Ctrl-C at the terminal is the runner's affair
            start_new_session=True,
        )
        worker = _Worker(process)
        self._all.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        try:
            for line in worker.process.stdout:
                if not worker.ready:
                    # its first line says that it has begun to work; until then it imports
                    with worker.lock:
                        worker.ready, worker.since = True, time.monotonic()
                    continue
                result = Result.from_json(json.loads(line))
                with worker.lock:
                    worker.job = None
                self._ended.put((worker, result))
        except (ValueError, TypeError, KeyError):
            # a line cut short by death, the pipe closed under us, or a worker of another version than ours
            worker.process.kill()
        status = worker.process.wait()
        with worker.lock:
            worker.gone = True
            job = worker.job
        if job is not None:
            error = f"the worker died with status {status}"
            said: Status = "lost"
            if worker.overdue and self._context is not None:
                error, said = str(passed({**self._context.limits}, float("inf"))), "failed"
            result = Result(job.address, said, pid=worker.process.pid, error=error, begun=worker.ready)
            self._ended.put((worker, result))
