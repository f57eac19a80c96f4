"""The noise of the next world, drawn while the model is still at work in this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from veridical.model.weights import Noise, NoiseSource
from veridical.random.keyed import Key

SMALLEST = 2**18
"""Parameters from which on the noise of a model on a GPU takes longer to draw than a thread to begin."""
THREADS = 8


class NoiseAhead:
    """Weight noise by key: for a large model on a GPU that of the key to come is drawn in other threads.

    Noise is drawn on the CPU, the same on every device, which would leave a GPU waiting. `coming` lists the
    keys in the order they will be asked for; at most one draw is begun ahead, and a key that was not expected
    is drawn when it is asked for. The threads end with the block: `with NoiseAhead(source, keys) as noise`.
    """

    def __init__(self, source: NoiseSource, coming: Iterable[Key] = ()) -> None:
        self._source = source
        self._coming: Iterator[Key] = iter(coming)
        self._next: tuple[Key, Callable[[], Noise]] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> NoiseAhead:
        if worthwhile(self._source):
            self._pool = ThreadPoolExecutor(
                min(THREADS, free_cores()), thread_name_prefix="veridical noise ahead"
            )
            self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._next = None
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def __call__(self, key: Key) -> Noise:
        """The noise of a key, to the bit what `source(key)` gives."""
        if self._next is None or self._next[0] != key:
            return self._source(key)
        noise = self._source.keep(key, self._next[1]())
        self._begin()
        return noise

    def _begin(self) -> None:
        key = next(self._coming, None)
        self._next = None if key is None else (key, self._source.begin(key, self._pool))


def free_cores() -> int:
    """Cores that this process may use; fewer than the machine has where it was pinned."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worthwhile(source: NoiseSource) -> bool:
    """Whether drawing ahead pays: on a CPU the threads would take from the model what they save."""
    return source.size >= SMALLEST and source.device.type == "cuda"
