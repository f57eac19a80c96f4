"""What a study will take: cells, evaluations and seconds, from a short calibration on a few samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from veridical.core.key import Key
from veridical.gef import GEF
from veridical.gef.noise_path import even_levels
from veridical.metrics import Metric
from veridical.study.plan import PlannedTask, StudyPlan, torch_threads
from veridical.study.preparations import FINETUNED
from veridical.study.resolve import load_task, make_explainer, make_metric
from veridical.values.task import Task

FEW = 8
BUDGET_SECONDS = 20.0


@dataclass(frozen=True)
class Estimate:
    """Work that is left of a study. `seconds` are of one worker; `preparations` come on top of them.

    `measured` of `combinations` (a task with an explainer or a metric) were tried; the others are taken to be
    like the median of those.
    """

    cells: int
    known: int
    evaluations: int
    seconds: float
    preparations: int
    measured: int
    combinations: int
    skipped: int

    def __str__(self) -> str:
        there = f", {self.known} of them there already" if self.known else ""
        first = f", after {self.preparations} preparations" if self.preparations else ""
        skipped = f"; {self.skipped} combinations do not apply" if self.skipped else ""
        return (
            f"{self.cells} cells{there}; about {self.evaluations:,} evaluations and {self.seconds:.0f} s "
            f"on one worker{first} (measured {self.measured} of {self.combinations} combinations on {FEW} "
            f"samples){skipped}"
        )


def estimate(
    plan: StudyPlan,
    known: Iterable[str] = (),
    allow_code: bool = False,
    budget_seconds: float = BUDGET_SECONDS,
) -> Estimate:
    """Try every explainer and metric of every task on a few samples, within a budget of seconds."""
    there = set(known)
    deadline = time.monotonic() + budget_seconds
    costs: dict[Combination, PerSample | None] = {}
    with torch_threads(plan.threads):
        for task in plan.tasks:
            costs |= _tried(plan, task, allow_code, deadline)
    found = [cost for cost in costs.values() if cost is not None]
    typical = tuple(map(statistics.median, zip(*found, strict=True))) if found else (0.0, 0.0)
    cells = old = 0
    evaluations = seconds = 0.0
    needed: set[str] = set()
    for group in plan.groups():
        todo = [job for job in group.scores if not (job.hash in there and job.cached)]
        cells, old = cells + len(group.scores), old + len(group.scores) - len(todo)
        needed.update(need for job in todo for need in job.needs)
        for job in [*todo, group.explain] if todo and group.explain is not None else todo:
            labels = job.labels
            rows, time_ = costs.get((labels["task"], labels["explainer"], labels["metric"])) or typical
            evaluations, seconds = evaluations + rows * job.samples, seconds + time_ * job.samples
    first = sum(job.hash in needed for job in plan.preparations())
    tried = (len(found), len(costs), len(plan.skipped))
    return Estimate(cells, old, round(evaluations), seconds, first, *tried)


Combination = tuple[str, str, str]
"""The labels of a task, an explainer, and a metric or nothing."""
PerSample = tuple[float, float]
"""The evaluations and seconds of a sample."""


def _tried(
    plan: StudyPlan, planned: PlannedTask, allow_code: bool, deadline: float
) -> dict[Combination, PerSample | None]:
    """The cost of every map and score of one task; None for what there was no time for, or raised."""
    size = min(FEW, plan.size(planned))
    shard = (0, size) if planned.ranged else None
    task = load_task(planned.choice, planned.rows, plan.threads, plan.device, allow_code, shard)[:size]
    found: dict[Combination, PerSample | None] = {}
    for thing in plan.applicable(planned, "explainer"):
        explainer = make_explainer(thing.choice, allow_code)
        cell = planned.label, thing.label, ""
        explanation, found[cell] = _try(task, partial(explainer, task, Key(0)), deadline)
        for other in plan.applicable(planned, "metric"):
            metric: Any = make_metric(other.choice, allow_code)
            if isinstance(metric, GEF):
                # the search for the path is a preparation, counted apart
                metric = replace(metric, path=even_levels(1.0, metric.levels))
            subject = explanation if isinstance(metric, Metric) else explainer
            finetunes = any(facts["kind"] == FINETUNED for facts in other.prepares[0])
            tried = not finetunes and subject is not None
            score = partial(metric, task, subject, Key(0))
            cell = planned.label, thing.label, other.label
            found[cell] = _try(task, score, deadline)[1] if tried else None
    return found


def _try(task: Task, make: Callable[[], Any], deadline: float) -> tuple[Any, PerSample | None]:
    """Do something once; what raises here is reported by its own cell."""
    before, began = task.predictor.meter.cost, time.perf_counter()
    try:
        made = make() if time.monotonic() <= deadline else None
    except Exception:
        made = None
    if made is None:
        return None, None
    spent, cost = time.perf_counter() - began, task.predictor.meter.cost - before
    return made, ((cost.forward + cost.backward) / len(task), spent / len(task))
