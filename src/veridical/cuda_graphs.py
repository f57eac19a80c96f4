"""Passes recorded as CUDA graphs."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from contextlib import suppress

import torch

from veridical.recording import Answer


class CudaGraphs:
    """Records passes of one thread; they share the memory of what is between their beginnings and ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._aside = torch.cuda.Stream(device)
        """One for all: cuBLAS keeps memory for every stream it works on."""

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
            graph, here, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), self._aside
            # a collection might give back what is CUDA's, which must be asked for nothing else meanwhile
            collects = gc.isenabled()
            gc.disable()
            try:
                aside.wait_stream(here)
                with torch.cuda.stream(aside):
                    graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                    try:
                        answer = run()
                    finally:
                        graph.capture_end()
                here.wait_stream(aside)
            except BaseException:
                self._mend()
                raise
            finally:
                if collects:
                    gc.enable()
        return answer, graph.replay

    def _mend(self) -> None:
        """After a recording that failed torch's memory and random numbers still believe in it."""
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
        with suppress(Exception), torch.cuda.stream(torch.cuda.Stream()):
            another = torch.cuda.CUDAGraph()
            another.capture_begin(capture_error_mode="thread_local")
            torch.zeros(1, device=self._device).add_(1)
            another.capture_end()

    def _taken(self) -> int:
        """Bytes that tensors have taken so far, those that were given back included."""
        return int(torch.cuda.memory_stats(self._device)["allocated_bytes.all.allocated"])
