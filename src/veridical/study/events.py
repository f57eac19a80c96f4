"""What a running study tells those who watch it: a bar, a log, a tracker of experiments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from veridical.study.cells import Job, Result
from veridical.study.plan import StudyPlan

What = Literal["planned", "started", "done", "failed", "lost", "finished"]


@dataclass(frozen=True)
class Counts:
    """How far a study is; `known` cells were there before this run began."""

    cells: int
    known: int
    done: int = 0
    failed: int = 0

    @property
    def left(self) -> int:
        """Cells that are still to do."""
        return self.cells - self.known - self.done - self.failed


@dataclass(frozen=True)
class Event:
    """One thing that happened. `job` is None for "planned" and "finished"; `result` comes when a job ends."""

    what: What
    counts: Counts
    plan: StudyPlan
    folder: str
    job: Job | None = None
    result: Result | None = None


Watcher = Callable[[Event], None]
"""Called in the runner's process, in order; it must be quick and must not raise."""
