"""A line at the terminal: cells done, evaluations per second, time left. Silent when nobody is looking."""

from __future__ import annotations

import sys
import time
from typing import Any

from veridical.study.events import Event


class Pace:
    """How fast a study goes: evaluations per second, and the seconds left."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.evaluations = 0

    def add(self, event: Event) -> None:
        """Take an ended job into account."""
        if event.job is None or event.result is None or event.result.address != event.job.address:
            return
        self.evaluations += event.result.forward + event.result.backward

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def rate(self) -> float:
        """Evaluations per second since the run began."""
        return self.evaluations / max(self.elapsed, 1e-9)

    def left(self, event: Event) -> float | None:
        """Seconds left, from the share of cells that are done."""
        ended = event.counts.done + event.counts.failed
        return None if not ended else self.elapsed / ended * event.counts.left


class Bar:
    """A watcher that draws; `show` is by default whether standard error is a terminal."""

    def __init__(self, show: bool | None = None) -> None:
        self._show = sys.stderr.isatty() if show is None else show
        self._progress: Any = None
        self._line: Any = None
        self._pace = Pace()

    def __call__(self, event: Event) -> None:
        if not self._show:
            return
        if self._progress is None:
            self._begin(event)
        if event.what == "started":
            return
        self._pace.add(event)
        left = self._pace.left(event)
        counts = event.counts
        self._progress.update(
            self._line,
            completed=counts.known + counts.done + counts.failed,
            rate=f"{self._pace.rate:,.0f} evaluations/s",
            left="" if left is None else f"{_clock(left)} left",
            failed=f"[red]{counts.failed} failed[/red]" if counts.failed else "",
        )
        if event.what == "finished":
            self._progress.stop()

    def _begin(self, event: Event) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._pace = Pace()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            *(TextColumn(f"{{task.fields[{name}]}}") for name in ("rate", "left", "failed")),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._line = self._progress.add_task(
            event.plan.name, total=event.counts.cells, rate="", left="", failed=""
        )
        self._progress.start()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
