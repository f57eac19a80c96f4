"""Running a plan: which job is ready and what became of it. Executors do the work."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from veridical.core import files
from veridical.errors import StudyError
from veridical.study.cells import Context, Job, Result
from veridical.study.events import Counts, Event, Watcher, What
from veridical.study.executors import Executor
from veridical.study.folder import CELLS, EXPLANATIONS, FAILURES, PREPARED, Folder
from veridical.study.plan import Group, StudyPlan
from veridical.study.store import FAILURE_FORMAT, FAILURE_KIND, failure_of, jobs_of, place, problem

log = logging.getLogger("veridical")
RETRIES = 2
LOST_IN_A_ROW = 10


class Runner:
    """One run of a plan into a folder.

    A job is handed out when everything it needs is there; cells whose file is there are not computed again.
    Groups of cells are taken from the plan one at a time, so memory does not grow with the study.
    """

    def __init__(
        self, plan: StudyPlan, folder: Folder, executor: Executor, watchers: Sequence[Watcher]
    ) -> None:
        self.plan, self.folder, self.executor, self.watchers = plan, folder, executor, watchers
        self._cells = folder.names(CELLS)
        self._made = folder.names(EXPLANATIONS) | folder.names(PREPARED)
        self.damaged = self._remove_damaged()
        self._failures = folder.names(FAILURES)
        self._broken: dict[str, Result] = {}
        self._ready: deque[Job] = deque()
        self._parked: dict[str, list[Job]] = {}
        self._flying: dict[str, Job] = {}
        self._tries: dict[str, int] = {}
        self._open: dict[str, set[str]] = {}
        self._lost_in_a_row = 0
        self._wanted = set(self.damaged)
        preparations = {job.address for job in plan.preparations()}
        total = known = 0
        for job in plan.cells():
            total += 1
            if self._has(job):
                known += 1
            else:
                self._wanted.update(need for need in job.needs if need in preparations)
        self.counts = Counts(total, known)

    def run(self, context: Context) -> Counts:
        """Carry out everything that is not there yet; Ctrl-C ends early and keeps what is finished."""
        self._tell("planned")
        try:
            if self.counts.left or self.damaged:
                self.executor.start(context)
                self._go()
        except KeyboardInterrupt:
            log.warning("interrupted; the finished cells are kept")
        finally:
            self.executor.close()
            self._tell("finished")
        return self.counts

    def _remove_damaged(self) -> dict[str, str]:
        """Take away files that are not what their jobs left, and say so; they are made again."""
        found: dict[str, str] = {}
        for job in jobs_of(self.plan):
            there = self._cells if job.kind == "score" else self._made
            if job.address not in there:
                continue
            try:
                wrong = problem(self.folder, job)
            except FileNotFoundError:
                wrong = ""  # another run, or another ending of the name
            if wrong is None:
                continue
            there.discard(job.address)
            if wrong:
                log.warning("%s; it is made again", wrong)
                self.folder.delete(place(job))
                found[job.address] = wrong
        return found

    # --- order --------------------------------------------------------------------------------------

    def _go(self) -> None:
        groups = self.plan.groups()
        pending = self._pending_preparations()
        more = True
        while more or self._ready or self._flying:
            while len(self._flying) < self.executor.slots:
                # a map just made goes first: its scores are what a killed run would lose
                if not self._ready:
                    more = self._take_next(pending, groups)
                    if not self._ready:
                        break
                self._hand_out(self._ready.popleft())
            if not self._flying:
                # nothing can end any more, so what is parked never becomes ready
                break
            for result in self.executor.wait():
                self._ended(result)

    def _pending_preparations(self) -> deque[Job]:
        return deque(
            job
            for job in self.plan.preparations()
            if job.address in self._wanted and not (job.address in self._made and self.plan.cached(job))
        )

    def _take_next(self, pending: deque[Job], groups: Iterator[Group]) -> bool:
        """Put jobs of the next preparation or group in order; False when there are none left."""
        if pending:
            job = pending.popleft()
            self._parked.setdefault(job.address, [])
            self._ready.append(job)
            return True
        for group in groups:
            todo = [job for job in group.scores if not self._has(job)]
            explain = group.explain
            if not todo:
                # no cell needs the map any more, but it is part of the study
                if explain is not None and explain.address in self.damaged and self.plan.keep_explanations:
                    self._ready.append(explain)
                    return True
                continue
            if explain is not None and any(explain.address in job.needs for job in todo):
                known = explain.address in self._made and self.plan.cached(explain)
                self._open[explain.address] = {j.address for j in todo if explain.address in j.needs}
                if not known:
                    self._parked.setdefault(explain.address, [])
                    self._ready.append(explain)
            for job in todo:
                self._park(job)
            if self._ready:
                return True
        return False

    def _park(self, job: Job) -> None:
        """Make a job ready, or let it wait for the first thing it needs that is not there."""
        for need in job.needs:
            if need in self._broken:
                self._fail(job, self._broken[need])
                return
            if need in self._parked:
                self._parked[need].append(job)
                return
        self._ready.append(job)

    def _hand_out(self, job: Job) -> None:
        self._flying[job.address] = job
        self._tell("started", job)
        self.executor.submit(job)

    # --- ends ---------------------------------------------------------------------------------------

    def _ended(self, result: Result) -> None:
        job = self._flying.pop(result.address)
        if result.status == "lost":
            self._lost(job, result)
            return
        self._lost_in_a_row = 0
        if result.status == "failed":
            self._fail(job, result)
            return
        if job.kind == "score":
            self.counts = replace(self.counts, done=self.counts.done + 1)
            if job.address in self._failures:
                self.folder.delete(f"{FAILURES}/{job.address}.json")
        else:
            self._made.add(job.address)
        self._tell("done", job, result)
        self._close(job)
        self._release(job.address)

    def _lost(self, job: Job, result: Result) -> None:
        """A worker died: try again, elsewhere, a few times; then the job itself may be what kills."""
        # a worker that died while it imported does not tell against its job
        tries = self._tries[job.address] = self._tries.get(job.address, 0) + result.begun
        self._lost_in_a_row += 1
        self._tell("lost", job, result)
        if self._lost_in_a_row >= LOST_IN_A_ROW:
            raise StudyError(
                f"{self._lost_in_a_row} workers in a row have died; the last said: {result.error}"
            )
        if tries <= RETRIES:
            self._ready.append(job)
        else:
            self._fail(job, replace(result, status="failed", error=f"{result.error}, {tries} times"))

    def _fail(self, job: Job, result: Result) -> None:
        """Record a failed cell, or every cell that rests on a failed explanation or preparation."""
        if job.kind == "score":
            self.counts = replace(self.counts, failed=self.counts.failed + 1)
            record = failure_of(job, "score" if result.address == job.address else "before")
            record |= {"error": result.error, "traceback": result.traceback}
            content = files.pack_json(record, FAILURE_KIND, FAILURE_FORMAT, job.address)
            self.folder.write(f"{FAILURES}/{job.address}.json", content)
            if job.address in self._cells:
                self.folder.delete(f"{CELLS}/{job.address}.parquet")
            self._close(job)
        else:
            self._broken[job.address] = result
        self._tell("failed", job, result)
        self._release(job.address)

    def _release(self, address: str) -> None:
        for job in reversed(self._parked.pop(address, [])):
            before = len(self._ready)
            self._park(job)
            if len(self._ready) > before:
                self._ready.rotate(1)

    def _close(self, job: Job) -> None:
        """Drop an explanation that has served its last cell, where the study does not keep them."""
        for need in job.needs:
            cells = self._open.get(need)
            if cells is None:
                continue
            cells.discard(job.address)
            if not cells:
                del self._open[need]
                if not self.plan.keep_explanations:
                    self.folder.delete(f"{EXPLANATIONS}/{need}.safetensors")

    # --- facts --------------------------------------------------------------------------------------

    def _has(self, job: Job) -> bool:
        return job.address in self._cells and self.plan.cached(job)

    def _tell(self, what: What, job: Job | None = None, result: Result | None = None) -> None:
        event = Event(what, self.counts, self.plan, self.folder.url, job, result)
        for watcher in self.watchers:
            watcher(event)
