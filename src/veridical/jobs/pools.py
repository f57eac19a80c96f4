"""Executors of `concurrent.futures` for jobs: processes that may die, and which one by its name."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any

from veridical.errors import InputError
from veridical.jobs.ray import RayPool
from veridical.jobs.run import WorkerLostError

TOO_LARGE = 77
"""The status of a process that ended since it held too much memory."""
NAMES = ("in-process", "threads", "processes", "ray")


def as_executor(
    executor: str | Executor | None,
    workers: int,
    seconds: float | None = None,
    memory_mib: int | None = None,
) -> Executor | None:
    """Accept an executor or its name; None is this process.

    Parameters
    ----------
    executor
        "in-process", "threads", "processes" (the default for more than one worker), "ray", or an executor of
        `concurrent.futures`.
    workers
        How many threads, processes or CPUs of a cluster of this machine.
    seconds, memory_mib
        After how many seconds, and with how much memory, a job in another process is ended.
    """
    if executor is None:
        executor = "in-process" if workers == 1 else "processes"
    if isinstance(executor, Executor) or executor == "in-process":
        return executor if isinstance(executor, Executor) else None
    if executor == "threads":
        return ThreadPoolExecutor(workers)
    if executor == "processes":
        return Processes(workers, seconds, memory_mib)
    if executor == "ray":
        return RayPool(num_cpus=workers, seconds=seconds)
    raise InputError(f"executor is {', '.join(map(repr, NAMES))} or an Executor, got {executor!r}")


class Processes(Executor):
    """Processes of this machine, each started afresh and replaced when it dies.

    They do not import the script that started them, so it needs no `if __name__ == "__main__"`, and they end
    when it does, even by SIGKILL. A call whose process died raises `WorkerLostError`; others do not notice.

    Parameters
    ----------
    workers
        How many.
    seconds
        A call that takes longer raises `TimeoutError`, and its process is ended; None sets no limit.
    memory_mib
        A call whose process holds more raises `MemoryError`; None sets no limit, nor is there one where
        /proc is missing.
    """

    def __init__(self, workers: int = 2, seconds: float | None = None, memory_mib: int | None = None) -> None:
        if not isinstance(workers, int) or workers < 1:
            raise InputError(f"workers is a whole number from 1, got {workers!r}")
        self.slots, self.seconds, self.memory_mib = workers, seconds, memory_mib
        self._lock = threading.RLock()
        self._calls: deque[tuple[Future[Any], bytes]] = deque()
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Send a call out; the future has its result, or raises what it raised."""
        made: Future[Any] = Future()
        with self._lock:
            self._calls.append((made, pickle.dumps((fn, args, named))))
        self._hand_out()
        return made

    def _hand_out(self) -> None:
        with self._lock:
            while self._calls and not self._closed:
                if not self._idle:
                    if len(self._workers) >= self.slots:
                        return
                    self._add()
                future, call = self._calls.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                worker = self._idle.pop()
                timer = worker.limited(self.seconds)
                try:
                    inner = worker.pool.submit(_called, call)
                except BrokenExecutor as error:
                    inner = Future()
                    inner.set_exception(error)
                inner.add_done_callback(partial(self._ended, worker, future, timer))

    def _add(self) -> None:
        worker = _Worker(self.memory_mib)
        self._workers.append(worker)
        self._idle.append(worker)

    def _ended(
        self, worker: _Worker, future: Future[Any], timer: threading.Timer | None, inner: Future[Any]
    ) -> None:
        if timer is not None:
            timer.cancel()
        error = inner.exception()
        with self._lock:
            if isinstance(error, BrokenExecutor):
                self._workers.remove(worker)
                worker.pool.shutdown(wait=False)
            else:
                self._idle.append(worker)
        if error is None:
            future.set_result(inner.result())
        elif worker.overdue:
            future.set_exception(TimeoutError(f"it took longer than {self.seconds:g} s (limits: seconds)"))
        elif isinstance(error, BrokenExecutor) and worker.status == TOO_LARGE:
            said = f"its process held more than {self.memory_mib} MiB (limits: memory_mib)"
            future.set_exception(MemoryError(said))
        elif isinstance(error, BrokenExecutor):
            begun = worker.ready.done() and worker.ready.exception() is None
            future.set_exception(WorkerLostError(f"the worker died with status {worker.status}", begun))
        else:
            future.set_exception(error)
        self._hand_out()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes, whatever they are doing: what they have not given back is done again."""
        with self._lock:
            self._closed = True
            for future, _ in self._calls:
                future.cancel()
            workers, self._workers, self._idle = self._workers, [], []
        for worker in workers:
            worker.end()
            worker.pool.shutdown(wait=wait)


class _Worker:
    """One process: a pool of its own, so that its death is nobody else's."""

    def __init__(self, memory_mib: int | None) -> None:
        self._context = _Context()
        self.pool = ProcessPoolExecutor(1, self._context, initializer=_begin, initargs=(memory_mib,))
        self.ready = self.pool.submit(os.getpid)
        """Done once the process works; until then it imports."""
        self.overdue = False

    def limited(self, seconds: float | None) -> threading.Timer | None:
        """A timer that ends the process; it runs once the process works."""
        if seconds is None:
            return None
        timer = threading.Timer(seconds, self._too_long)
        timer.daemon = True

        def begin(_: Future[int]) -> None:
            if not timer.finished.is_set():
                timer.start()

        self.ready.add_done_callback(begin)
        return timer

    def _too_long(self) -> None:
        self.overdue = True
        self.end()

    def end(self) -> None:
        for process in self._context.processes:
            process.kill()

    @property
    def status(self) -> int | None:
        for process in self._context.processes:
            process.join(5)
            return process.exitcode
        return None


class _Context(SpawnContext):
    """Processes that are known to who began them."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[_Process] = []

    def Process(self, *args: Any, **named: Any) -> _Process:  # type: ignore[override]  # noqa: N802
        made = _Process(*args, **named)
        self.processes.append(made)
        return made


class _Process(SpawnProcess):
    """A process that does not import the script by which this one was started."""

    _main = threading.Lock()

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802
        with _Process._main:
            script = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                return SpawnProcess._Popen(process_obj)
            finally:
                sys.modules["__main__"] = script


def _called(call: bytes) -> Any:
    """A call, unpacked here: what cannot be imported is the call's error, not the end of the process."""
    fn, args, named = pickle.loads(call)
    return fn(*args, **named)


def _begin(memory_mib: int | None) -> None:
    """In a new process: leave Ctrl-C and standard output to the one that began it, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)

    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        while parent.is_alive():
            parent.join(None if memory_mib is None else 0.1)
            if memory_mib is not None and _held_mib() > memory_mib:
                os._exit(TOO_LARGE)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _held_mib() -> float:
    """Memory that this process holds now; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError, IndexError):
        return 0.0
