"""Seconds that can be compared: the work and its bare model evaluations, taken in turn in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import veridical as vd
from veridical.explainers.gradients import gradient


@dataclass(frozen=True)
class Timing:
    """Rows asked, seconds taken, seconds of the same rows without anything around them."""

    name: str
    forward: int
    backward: int
    seconds: float
    bare_seconds: float

    @property
    def overhead(self) -> float:
        """How many times the bare evaluations the work takes."""
        return self.seconds / self.bare_seconds if self.bare_seconds else float("nan")


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call, with the device idle before and after."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def bare(task: vd.Task, cost: vd.Cost) -> Callable[[], None]:
    """The same number of rows through the model, in the task's chunks, from a batch that is ready."""
    rows = task.predictor.rows
    times = -(-rows // len(task))
    ready = task.inputs.repeat(times, *[1] * (task.inputs.dim() - 1))[:rows]
    chunk = task[torch.arange(rows) % len(task)] if rows <= len(task) else None

    def run() -> None:
        left = cost.forward - cost.backward
        with task.session() as model:
            while left > 0:
                model(ready[: min(rows, left)])
                left -= rows
        left = cost.backward
        piece = chunk if chunk is not None else task
        while left > 0:
            gradient(piece[: min(len(piece), left)] if left < len(piece) else piece)
            left -= len(piece)

    return run


def compare(name: str, work: Callable[[], vd.Cost], task: vd.Task, rounds: int = 3) -> Timing:
    """Time the work and its bare evaluations in turn; the median ratio is what noise touches least."""
    cost = work()
    evaluations = bare(task, cost)
    evaluations()
    pairs = [(seconds(work, task.device), seconds(evaluations, task.device)) for _ in range(rounds)]
    pairs.sort(key=lambda pair: pair[0] / max(pair[1], 1e-12))
    middle = pairs[len(pairs) // 2]
    return Timing(name, cost.forward, cost.backward, *middle)


def table(timings: list[Timing]) -> str:
    """The timings as a Markdown table."""
    lines = [
        "| what | rows forward | rows backward | seconds | bare seconds | overhead |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {t.name} | {t.forward} | {t.backward} | {t.seconds:.3f} "
        f"| {t.bare_seconds:.3f} | {t.overhead:.2f} |"
        for t in timings
    ]
    if timings:
        ratios = [t.overhead for t in timings if t.overhead == t.overhead]
        lines.append(f"| median | | | | | {statistics.median(ratios):.2f} |" if ratios else "")
    return "\n".join(lines)
