"""What a study will take: cells, evaluations and seconds, from a short calibration on a few samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from veridical.core.key import Key
from veridical.explainers import Explainer
from veridical.gef import GEF
from veridical.gef.noise_path import even_levels
from veridical.metrics import AnyMetric, ExplainerMetric, Metric
from veridical.models.cost import Cost
from veridical.study.plan import PlannedTask, StudyPlan, torch_threads
from veridical.study.preparations import FINETUNED
from veridical.study.resolve import load_task, make_explainer, make_metric
from veridical.values.explanation import Explanation
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


@dataclass(frozen=True)
class Price:
    """Evaluations and seconds per sample."""

    evaluations: float
    seconds: float


def estimate(
    plan: StudyPlan,
    known: Iterable[str] = (),
    allow_code: bool = False,
    budget_seconds: float = BUDGET_SECONDS,
) -> Estimate:
    """Price every explainer and metric of every task on a few samples, within a budget of seconds."""
    there = set(known)
    deadline = time.monotonic() + budget_seconds
    prices: dict[tuple[str, str, str], Price | None] = {}
    with torch_threads(plan.threads):
        for task in plan.tasks:
            prices |= _priced(plan, task, allow_code, deadline)
    found = [price for price in prices.values() if price is not None]
    typical = Price(
        statistics.median(p.evaluations for p in found) if found else 0.0,
        statistics.median(p.seconds for p in found) if found else 0.0,
    )
    cells = old = 0
    evaluations = seconds = 0.0
    needed: set[str] = set()
    for group in plan.groups():
        todo = [job for job in group.scores if not (job.hash in there and plan.cached(job))]
        cells, old = cells + len(group.scores), old + len(group.scores) - len(todo)
        jobs = [*todo, group.explain] if todo and group.explain is not None else todo
        needed.update(need for job in todo for need in job.needs)
        for job in jobs:
            price = prices.get((job.task, job.explainer, job.metric)) or typical
            evaluations += price.evaluations * job.samples
            seconds += price.seconds * job.samples
    first = sum(job.hash in needed for job in plan.preparations())
    measured = len(found)
    return Estimate(cells, old, round(evaluations), seconds, first, measured, len(prices), len(plan.skipped))


def _priced(
    plan: StudyPlan, planned: PlannedTask, allow_code: bool, deadline: float
) -> dict[tuple[str, str, str], Price | None]:
    size = min(FEW, plan.size(planned))
    task = load_task(
        planned.choice,
        rows=planned.rows,
        threads=plan.threads,
        device=plan.device,
        allow_code=allow_code,
        shard=(0, size) if planned.ranged else None,
    )[:size]
    skip = {(s["explainer"], s["metric"]) for s in plan.skipped if s["task"] == planned.label}
    prices: dict[tuple[str, str, str], Price | None] = {}
    maps: dict[str, tuple[Explainer, Explanation, Price]] = {}
    for thing in plan.explainers:
        if (thing.label, "") in skip:
            continue
        explainer = make_explainer(thing.choice, allow_code)
        made, price = _try(task, partial(explainer, task, Key(0)), deadline)
        prices[planned.label, thing.label, ""] = price
        if price is not None:
            maps[thing.label] = (explainer, made, price)
    for thing in plan.metrics:
        if ("", thing.label) in skip:
            continue
        metric = make_metric(thing.choice, allow_code)
        finetunes = any(facts["kind"] == FINETUNED for facts in thing.prepares[0])
        own = None if finetunes else _metric_price(metric, task, maps, deadline)
        for who in plan.explainers:
            if (who.label, "") not in skip:
                prices[planned.label, who.label, thing.label] = own and _scaled(own, who.label, metric, maps)
    return prices


def _metric_price(
    metric: AnyMetric, task: Task, maps: dict[str, tuple[Explainer, Explanation, Price]], deadline: float
) -> Price | None:
    if not maps:
        return None
    explainer, explanation, _ = next(iter(maps.values()))
    if isinstance(metric, Metric):
        return _try(task, lambda: metric(task, explanation, Key(0)), deadline)[1]
    if not isinstance(metric, ExplainerMetric):
        return None
    # the search for the path is a preparation, counted apart
    judge = replace(metric, path=even_levels(1.0, metric.levels)) if isinstance(metric, GEF) else metric
    return _try(task, lambda: judge(task, explainer, Key(0)), deadline)[1]


def _scaled(
    own: Price, who: str, metric: AnyMetric, maps: dict[str, tuple[Explainer, Explanation, Price]]
) -> Price:
    """A metric that explains again costs as many times more as its explainer does."""
    if isinstance(metric, Metric) or who not in maps:
        return own
    first = next(iter(maps.values()))[2]
    mine = maps[who][2]
    more = mine.evaluations / first.evaluations if first.evaluations else 1.0
    longer = mine.seconds / first.seconds if first.seconds else 1.0
    return Price(own.evaluations * more, own.seconds * longer)


def _try(task: Task, make: Callable[[], Any], deadline: float) -> tuple[Any, Price | None]:
    """Do something once and price it; what raises here will be told by its own cell."""
    if time.monotonic() > deadline:
        return None, None
    before: Cost = task.predictor.meter.cost
    began = time.perf_counter()
    try:
        made = make()  # a GPU gives a result before it is computed
    except Exception:
        return None, None
    spent = time.perf_counter() - began
    cost = task.predictor.meter.cost - before
    return made, Price((cost.forward + cost.backward) / len(task), spent / len(task))
