"""Carrying out jobs: which is ready, what became of it, and again where a worker died.

Executors are those of `concurrent.futures`; they know nothing of jobs, order or retries.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from veridical.core.progress import track
from veridical.errors import StudyError, VeridicalError

log = logging.getLogger("veridical")
J = TypeVar("J")
T = TypeVar("T")
MAX_WAITING = 1000
"""Jobs taken from a plan that wait for another; no more are taken before some are done."""
CHECK_SECONDS = 2.0


class WorkerLostError(VeridicalError):
    """A worker died before it gave a result; `begun`: whether it had started its call."""

    def __init__(self, message: str, begun: bool = True) -> None:
        super().__init__(message)
        self.begun = begun


class BlockedError(VeridicalError):
    """A job was not tried, since one that it needs has failed; `cause` is what that one raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True)
class Job:
    """One piece of work.

    Parameters
    ----------
    hash
        The content hash of everything that decides its result.
    needs
        The hashes of the jobs that must be done before.
    """

    hash: str
    needs: tuple[str, ...] = field(default=(), kw_only=True)


J_ = TypeVar("J_", bound=Job)


class _Here(Executor):
    """Every call in this process, at once."""

    slots = 1

    def submit(self, fn: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
        made: Future[T] = Future()
        try:
            made.set_result(fn(*args, **named))
        except Exception as error:
            made.set_exception(error)
        return made


def run(
    jobs: Iterable[J_],
    work: Callable[[Any], T],
    executor: Executor | None = None,
    *,
    payload: Callable[[J_], Any] | None = None,
    event: Callable[[str, J_], None] | None = None,
) -> Generator[tuple[J_, T | Exception]]:
    """Carry out jobs as soon as what they need is done, and give each with its result as it ends.

    Parameters
    ----------
    jobs
        In an order in which no job comes before one that it needs; taken one at a time, so that memory does
        not grow with them. A need that is not among the jobs before it counts as done.
    work
        A function that can be imported by workers; it gets the payload of a job.
    executor
        Of `concurrent.futures`; None works in this process.
    payload
        What is sent of a job, made when it goes out (the job itself by default).
    event
        Called with "started" when a job goes out.

    Yields
    ------
    tuple
        The job, and its result or the exception that it raised (`BlockedError` where one that it needs
        failed).

    Raises
    ------
    StudyError
        Where workers die one after the other.
    """
    pool = _Here() if executor is None else executor
    made = _Run(pool, work, payload or (lambda job: job), event or (lambda what, job: None))
    try:
        yield from made.results(iter(jobs))
    finally:
        for future in made.running:
            future.cancel()


@dataclass(eq=False)
class _Run:
    """The state of one `run`."""

    pool: Executor
    work: Callable[[Any], Any]
    payload: Callable[[Any], Any]
    event: Callable[[str, Any], None]
    running: dict[Future[Any], Any] = field(default_factory=dict)
    ready: deque[Any] = field(default_factory=deque)
    waiting: dict[str, list[Any]] = field(default_factory=dict)
    """Jobs that wait, by the hash of the job not done yet that they wait for."""
    failed: dict[str, Exception] = field(default_factory=dict)

    def results(self, jobs: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        while True:
            yield from self._fill(jobs)
            if not self.running:
                return
            done, _ = wait(self.running, CHECK_SECONDS, FIRST_COMPLETED)
            if not done and hasattr(self.pool, "check"):
                self.pool.check()  # a cluster whose head is gone would be waited for without end
            for future in done:
                job = self.running.pop(future)
                error = future.exception()
                if isinstance(error, BrokenExecutor):
                    raise StudyError(
                        "a process of the executor died, of too little memory perhaps; what is finished is "
                        "kept: run it again with fewer workers"
                    ) from error
                if isinstance(error, StudyError) or not isinstance(error, Exception | None):
                    raise error
                yield from self._ended(job, future.result() if error is None else error)

    def _fill(self, jobs: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        """Hand out jobs while there is room; gives those that cannot be tried."""
        while len(self.running) < self._slots:
            if not self.ready:
                if sum(map(len, self.waiting.values())) > MAX_WAITING:
                    return
                job = next(jobs, None)
                if job is None:
                    return
                self.waiting[job.hash] = []
                yield from self._place(job)
                continue
            job = self.ready.popleft()
            self.event("started", job)
            future = self.pool.submit(self.work, self.payload(job))
            self.running[future] = job
            if future.done():
                return

    @property
    def _slots(self) -> int:
        """How many jobs may be out: a pool's own word, which may change, or two for each of its workers."""
        return int(getattr(self.pool, "slots", 2 * getattr(self.pool, "_max_workers", 32)))

    def _place(self, job: Any, first: bool = False) -> Iterator[tuple[Any, Any]]:
        """Make a job ready, or let it wait for the first thing it needs that is not done."""
        for need in job.needs:
            if need in self.failed:
                yield from self._ended(job, BlockedError(self.failed[need]))
                return
            if need in self.waiting:
                self.waiting[need].append(job)
                return
        (self.ready.appendleft if first else self.ready.append)(job)

    def _ended(self, job: Any, result: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(result, Exception):
            self.failed[job.hash] = result.cause if isinstance(result, BlockedError) else result
        yield job, result
        # jobs that rest on a finished one go first: a killed run would lose them
        for other in reversed(self.waiting.pop(job.hash, [])):
            yield from self._place(other, first=True)


def resume(
    jobs: Mapping[str, J] | Sequence[tuple[str, J]],
    work: Callable[[J], T],
    *,
    load: Callable[[str, J], T | None],
    save: Callable[[str, J, T], None],
    executor: Executor | None = None,
    what: str = "computing",
    progress: bool | None = None,
) -> list[T]:
    """The results of all jobs, in order: those kept by an earlier run are read, the others made and kept.

    Parameters
    ----------
    jobs
        Pairs of a content hash and what `work` gets.
    work
        A function that can be imported by workers.
    load
        The kept result of a job, or None.
    save
        Keeps a result; called in this process as soon as a job ends.
    executor
        Of `concurrent.futures`; None works in this process.
    what, progress
        The words beside the bar, and whether there is one (by default at a terminal).

    Returns
    -------
    list
        One result per job. The first exception that a job raised is raised, the other results being kept.
    """
    pairs = list(jobs.items() if isinstance(jobs, Mapping) else jobs)
    found = {hash: kept for hash, one in pairs if (kept := load(hash, one)) is not None}
    fresh = {hash: one for hash, one in pairs if hash not in found}
    ended = run((Job(hash) for hash in fresh), work, executor, payload=lambda job: fresh[job.hash])
    for _ in track(range(len(fresh)), what, progress):
        job, result = next(ended)
        if isinstance(result, Exception):
            ended.close()
            raise result
        save(job.hash, fresh[job.hash], result)
        found[job.hash] = result
    return [found[hash] for hash, _ in pairs]
