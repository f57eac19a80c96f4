"""Passes recorded as CUDA graphs."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from threading import get_ident

import torch

from veridical.recording import Answer


class _Aside:
    """Where a thread records: one stream, as cuBLAS keeps memory for every one it meets, and one memory."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        # torch takes a memory for lost whose last recording is gone
        self.first = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            self.first.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            torch.zeros(1, device=device)
            self.first.capture_end()


@lru_cache(maxsize=64)
def _aside(device: torch.device, thread: int, stream: int) -> _Aside:
    """One for all that is played by a thread in one stream, one after the other."""
    return _Aside(device)


class CudaGraphs:
    """Records passes of one thread and stream, which share the memory between their beginnings and ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def weighed(self, run: Callable[[], Answer]) -> tuple[Answer, int | None]:
        """By torch's own count of bytes, and its warnings of whatever waits."""
        warns, taken = torch.cuda.get_sync_debug_mode(), self._taken()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            # an error instead of a warning would meet other threads as well
            torch.cuda.set_sync_debug_mode("warn")
            try:
                answer = run()
            finally:
                torch.cuda.set_sync_debug_mode(warns)
        waits = [each for each in said if "synchronizing CUDA operation" in str(each.message)]
        for each in said:
            if each not in waits and "debug mode" not in str(each.message):
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        return answer, None if waits else self._taken() - taken

    def record(self, run: Callable[[], Answer]) -> tuple[Answer, Callable[[], None]]:
        """On a stream of its own, as CUDA demands."""
        with torch.cuda.device(self._device):
            graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
            aside = _aside(self._device, get_ident(), here.cuda_stream)
            # a collection might give back what is CUDA's, which must be asked for nothing else meanwhile
            collects = gc.isenabled()
            gc.disable()
            try:
                aside.stream.wait_stream(here)
                with torch.cuda.stream(aside.stream):
                    graph.capture_begin(pool=aside.pool, capture_error_mode="thread_local")
                    try:
                        answer = run()
                    finally:
                        graph.capture_end()
                here.wait_stream(aside.stream)
            except BaseException:
                self._mend(aside)
                raise
            finally:
                if collects:
                    gc.enable()
        return answer, graph.replay

    def _mend(self, aside: _Aside) -> None:
        """After a recording that failed torch's memory and random numbers still believe in it."""
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(self._device.index, aside.pool)
        _aside.cache_clear()
        with suppress(Exception):
            _Aside(self._device)

    def _taken(self) -> int:
        """Bytes that tensors have taken so far, those that were given back included."""
        return int(torch.cuda.memory_stats(self._device)["allocated_bytes.all.allocated"])
