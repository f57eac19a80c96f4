"""Seconds that can be compared: the work and its bare model evaluations, taken in turn in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import veridical as vd
from veridical.models.predictor import call

LEAST = {"cuda": 0.2, "cpu": 0.05}
"""Seconds that one reading lasts at least: shorter work is repeated within it. On a GPU so often that what
the host does before the device can begin is done while the device works, as in any longer run."""
LONG = {"cuda": 0.15, "cpu": 4.0}
"""Seconds of work after which one reading is enough: on a GPU that nobody else uses, and on a processor."""


@dataclass(frozen=True)
class Timing:
    """Rows asked, seconds taken, seconds of the same rows without anything around them."""

    name: str
    forward: int
    backward: int
    seconds: float
    bare_seconds: float
    computed: int = 0
    """Rows that went through the model: those asked, and those that fill short chunks up to 8."""

    @property
    def overhead(self) -> float:
        """How many times the bare evaluations the work takes."""
        return self.seconds / self.bare_seconds if self.bare_seconds else float("nan")


def seconds(run: Callable[[], object], device: torch.device, times: int = 1, clock: str = "wall") -> float:
    """Seconds of one call, as the mean of several, with the device idle before and after.

    `clock="cpu"` counts what this process computed, whatever else the machine did meanwhile.
    """
    read = time.process_time if clock == "cpu" else time.perf_counter
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = read()
    for _ in range(times):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (read() - start) / times


def bare(task: vd.Task, cost: vd.models.Cost, batch: int | None = None) -> Callable[[], None]:
    """The same number of rows through the model, in chunks of the task's plan, from batches that are ready.

    The model is called as its user would, in the plan's precision and at the batch size that suits it best.
    `batch` bounds the rows of one call, where no more than that have their weights in common. Where more rows
    go back than forward, each sample goes forward once and back as often as it must.
    """
    rows = min(best_rows(task), batch or task.predictor.rows)
    backs = max(1, cost.backward // len(task)) if cost.backward > cost.forward else 1
    graded = cost.backward // backs
    ready = _repeated(task, min(rows, max(1, cost.forward - graded))).inputs
    few = min(rows, max(1, graded))
    piece = _repeated(task, few)
    whole, rest = divmod(graded, few)
    batches = [piece] * whole + ([piece[:rest]] if rest else [])

    def run() -> None:
        left = cost.forward - graded
        with task.session() as model:
            while left > 0:
                model(ready[: min(rows, left)])
                left -= rows
        for each in batches:
            with task.session(grad=True) as model:
                x = each.inputs.detach().requires_grad_(True)
                total = call(model, x, each.side).gather(1, each.targets[:, None]).sum()
                for more in reversed(range(backs)):
                    torch.autograd.grad(total, x, retain_graph=more > 0)

    return run


def best_rows(task: vd.Task) -> int:
    """The rows per call at which a GPU answers most rows per second; on a CPU those of the plan."""
    most = task.predictor.rows
    if task.device.type != "cuda":
        return most

    def speed(rows: int) -> float:
        batch = _repeated(task, rows).inputs
        with task.session() as model:
            model(batch)
            return rows / seconds(lambda: model(batch), task.device, times=5)

    return min(max({64, 128, 256, 512, most}, key=speed), most)


def _repeated(task: vd.Task, rows: int) -> vd.Task:
    return task[torch.arange(rows, device=task.device) % len(task)]


@contextmanager
def _rows_through(task: vd.Task) -> Iterator[list[int]]:
    """The rows of every call of the model while this is open, padding among them."""
    seen: list[int] = []

    def count(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(len(inputs[0]))

    hook = task.predictor.model.register_forward_pre_hook(count)
    try:
        yield seen
    finally:
        hook.remove()


def compare(
    name: str,
    work: Callable[[], vd.models.Cost],
    task: vd.Task,
    rounds: int = 3,
    batch: int | None = None,
    clock: str = "wall",
) -> Timing:
    """Time the work and its bare evaluations in turn; the median ratio is what noise touches least."""
    cost = vd.models.Cost()

    def first() -> None:
        nonlocal cost
        cost = work()

    _ = task.outputs  # what a task asks for itself is nobody's
    with _rows_through(task) as computed:
        warm = seconds(first, task.device)
    if not cost.forward:
        return Timing(name, 0, 0, warm, 0.0)
    evaluations = bare(task, cost, batch)
    least, long = (limits.get(task.device.type, limits["cpu"]) for limits in (LEAST, LONG))
    guess = [warm, seconds(evaluations, task.device)]
    # how long one call takes is known when all that is prepared once is there: a followed run is written down
    # by the second call, and what the third does for the first time is compiled
    for _ in range(3 if task.device.type == "cuda" else int(max(guess) < least)):
        if min(guess) <= long:
            guess = [seconds(run, task.device) for run in (work, evaluations)]
    if min(guess) > long:
        rounds = 1
    times = [max(1, min(50, round(least / max(each, 1e-6)))) for each in guess]
    pairs = [
        (seconds(work, task.device, times[0], clock), seconds(evaluations, task.device, times[1], clock))
        for _ in range(rounds)
    ]
    pairs.sort(key=lambda pair: pair[0] / max(pair[1], 1e-12))
    middle = pairs[len(pairs) // 2]
    return Timing(name, cost.forward, cost.backward, *middle, computed=sum(computed))


def table(timings: list[Timing]) -> str:
    """The timings as a Markdown table."""
    lines = [
        "| what | rows forward | rows backward | rows computed | seconds | bare seconds | overhead |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {t.name} | {t.forward} | {t.backward} | {t.computed} | {t.seconds:.4f} "
        f"| {t.bare_seconds:.4f} | {t.overhead:.2f} |"
        for t in timings
    ]
    if timings:
        ratios = [t.overhead for t in timings if t.overhead == t.overhead]
        lines.append(f"| median | | | | | | {statistics.median(ratios):.2f} |" if ratios else "")
    return "\n".join(lines)
