"""The noise of the next worlds, drawn while the model is still at work in this one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from veridical.core.key import Key
from veridical.functional.devices import on_host
from veridical.models.weights import Noise, NoiseSource

SMALLEST = 2**18
"""Parameters from which on the noise of a model on a GPU takes longer to draw than a thread to begin."""
THREADS = 16
AHEAD = 3
"""Draws that are begun ahead: the largest parameter is drawn by one thread, so that one draw alone would take
as long as that, whatever the number of threads."""


class NoiseAhead:
    """Weight noise by key: for a large model on a GPU that of the key to come is drawn in other threads.

    Noise is drawn on the CPU, the same on every device, which would leave a GPU waiting. `coming` lists the
    keys in the order they will be asked for; a few draws are begun ahead, and a key that was not expected is
    drawn when it is asked for. The threads end with the block: `with NoiseAhead(source, keys) as noise`.
    """

    def __init__(self, source: NoiseSource, coming: Iterable[Key] = ()) -> None:
        self._source = source
        self._coming: Iterator[Key] = iter(coming)
        self._begun: deque[tuple[Key, Callable[[], Noise]]] = deque()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> NoiseAhead:
        if worthwhile(self._source):
            self._pool = ThreadPoolExecutor(
                min(THREADS, free_cores()), thread_name_prefix="veridical noise ahead"
            )
            for _ in range(AHEAD):
                self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._begun.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def __call__(self, key: Key) -> Noise:
        """The noise of a key, to the bit what `source(key)` gives."""
        if self._source.has(key) or not self._begun or self._begun[0][0] != key:
            return self._source(key)
        self._begin()
        return self._source.keep(key, self._begun.popleft()[1]())

    def _begin(self) -> None:
        key = next((key for key in self._coming if not self._source.has(key)), None)
        if key is not None:
            self._begun.append((key, self._source.begin(key, self._pool)))


def free_cores() -> int:
    """Cores that this process may use; fewer than the machine has where it was pinned."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worthwhile(source: NoiseSource) -> bool:
    """Whether drawing ahead pays: on a CPU the threads would take from the model what they save."""
    return source.size >= SMALLEST and not on_host(source.device)
