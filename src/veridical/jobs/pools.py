"""Executors of `concurrent.futures` for jobs: processes that may die, and which one by its name."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from multiprocessing import get_context, parent_process
from types import ModuleType
from typing import Any

from veridical.errors import InputError, StudyError
from veridical.jobs.ray import RayPool
from veridical.jobs.run import WorkerLostError

log = logging.getLogger("veridical")
LOST_IN_A_ROW = 10
NAMES = ("in-process", "threads", "processes", "ray")


def as_executor(
    executor: str | Executor | None, workers: int, seconds: float | None = None
) -> Executor | None:
    """Accept an executor or its name; None is this process.

    Parameters
    ----------
    executor
        "in-process", "threads", "processes" (the default for more than one worker), "ray", or an executor of
        `concurrent.futures`.
    workers
        How many threads, processes or CPUs of a cluster of this machine.
    seconds
        After how many seconds a job in another process is ended.
    """
    if executor is None:
        executor = "in-process" if workers == 1 else "processes"
    if isinstance(executor, Executor) or executor == "in-process":
        return executor if isinstance(executor, Executor) else None
    if executor == "threads":
        return ThreadPoolExecutor(workers)
    if executor == "processes":
        return Processes(workers, seconds)
    if executor == "ray":
        return RayPool(num_cpus=workers, seconds=seconds)
    raise InputError(f"executor is {', '.join(map(repr, NAMES))} or an Executor, got {executor!r}")


class Processes(Executor):
    """Processes of this machine, each started afresh and replaced when it dies.

    They do not import the script that started them, so it needs no `if __name__ == "__main__"`, and they end
    when it does, even by SIGKILL. A call whose process died is tried again, then raises `WorkerLostError`;
    others do not notice.

    Parameters
    ----------
    workers
        How many.
    seconds
        A call that takes longer raises `TimeoutError`, and its process is ended; None sets no limit.
    retries
        How often a call is tried again whose process died under it.
    """

    def __init__(self, workers: int = 2, seconds: float | None = None, retries: int = 2) -> None:
        if not isinstance(workers, int) or workers < 1:
            raise InputError(f"workers is an integer from 1, got {workers!r}")
        self.slots, self.seconds, self.retries = workers, seconds, retries
        self._threads = ThreadPoolExecutor(workers)
        self._workers: dict[int, _Worker] = {}
        """The process of each thread."""
        self._closed = False
        self._lost_in_a_row = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Send a call out; the future has its result, or raises what it raised."""
        return self._threads.submit(self._call, pickle.dumps((fn, args, named)))

    def _call(self, call: bytes) -> Any:
        """Have a call done by the process of this thread; one whose process died is tried again."""
        losses = 0
        while True:
            try:
                found = self._called_once(call)
                self._lost_in_a_row = 0
                return found
            except WorkerLostError as lost:
                losses, self._lost_in_a_row = losses + lost.begun, self._lost_in_a_row + 1
                if self._lost_in_a_row >= LOST_IN_A_ROW:
                    raise StudyError(f"{LOST_IN_A_ROW} workers in a row have died: {lost}") from lost
                if self._closed or losses > self.retries:
                    raise WorkerLostError(f"{lost}, {losses} times") from None
                log.warning("%s; its work is given out again", lost)

    def _called_once(self, call: bytes) -> Any:
        me, begun = threading.get_ident(), False
        with _STARTING:
            if self._closed:
                raise WorkerLostError("the pool was shut down", begun)
            worker = self._workers.get(me) or self._workers.setdefault(me, _Worker())
        try:
            worker.ready.result()
            begun = True
            future = worker.pool.submit(_called, call)
            late = not wait([future], self.seconds).done
            if not late:
                return future.result()
            worker.process.kill()
        except BrokenExecutor:
            late = False
        status = self._workers.pop(me, worker).ended()
        if late:
            raise TimeoutError(f"it took longer than {self.seconds:g} s (limits: seconds)")
        raise WorkerLostError(f"the worker died with status {status}", begun)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes, whatever they are doing: what they have not given back is done again."""
        with _STARTING:
            self._closed = True
            workers = list(self._workers.values())
        for worker in workers:
            worker.process.kill()
            worker.pool.shutdown(wait=wait)
        self._threads.shutdown(wait, cancel_futures=True)


_STARTING = threading.Lock()
"""Held while a process starts, since `__main__` is another one for that moment."""


class _Worker:
    """One process: a pool of its own, so that its death is nobody else's."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin)
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # it does not import the script
        try:
            self.ready = self.pool.submit(os.getpid)
            """Done once the process works; until then it imports."""
        finally:
            sys.modules["__main__"] = script
        (self.process,) = self.pool._processes.values()

    def ended(self) -> int | None:
        """With what status the process has ended."""
        self.process.join(5)
        self.pool.shutdown(wait=False)
        return self.process.exitcode


def _called(call: bytes) -> Any:
    """A call, unpacked here: what cannot be imported is the call's error, not the end of the process."""
    fn, args, named = pickle.loads(call)
    return fn(*args, **named)


def _begin() -> None:
    """In a new process: leave Ctrl-C and standard output to the one that began it, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)

    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
