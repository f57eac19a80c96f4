"""How much an audit will ask of the model, told before it begins."""

from __future__ import annotations

import time
from collections.abc import Mapping

from veridical.audit.panel import Effort, Panel, Seat, rows_of
from veridical.fidelity.metrics import Fidelity
from veridical.gef import GEF
from veridical.metrics import AnyMetric, ExplainerMetric
from veridical.task import Task

LARGE_INPUT = 10_000
LONG_SECONDS = 600.0
"""From here on an audit says beforehand how long it may take."""


def rows_of_metric(metric: AnyMetric, task: Task, explainer_rows: int) -> int:
    """About how many rows one score of a sample takes; exact counts come with the scores."""
    inner = getattr(metric, "metric", None)
    if isinstance(inner, AnyMetric):
        return 2 * rows_of_metric(inner, task, explainer_rows)
    if isinstance(metric, GEF):
        return (1 + metric.levels * metric.draws) * explainer_rows
    if isinstance(metric, Fidelity):
        return int(len(metric.sizes) * metric.removal["draws"])
    if isinstance(metric, ExplainerMetric):
        return (1 + int(getattr(metric, "draws", 1))) * explainer_rows
    own = getattr(metric, "runs", None) or getattr(metric, "steps", None)
    return int(own or 0)


def estimated_rows(task: Task, panel: Panel, seats: Mapping[str, Seat], effort: Effort) -> int:
    """About how many rows the scoring and the meta-evaluation will ask."""

    def per_sample(rows: int) -> int:
        return rows + sum(rows_of_metric(seat.metric, task, rows) for seat in seats.values())

    everyone = sorted(rows_of(e, task) for e in (*panel.explainers.values(), *panel.controls.values()))
    scoring = len(task) * sum(per_sample(rows) for rows in everyone)
    worlds = 1 + 4 * effort.meta_draws * effort.meta_iterations
    cheapest = sorted(rows_of(e, task) for e in panel.explainers.values())[: effort.meta_explainers]
    few = min(len(task), effort.meta_samples)
    return scoring + worlds * few * sum(per_sample(rows) for rows in cheapest)


def seconds_a_row(task: Task) -> float:
    """How long one row forward takes here, by the task's own rows asked twice; the first time warms up."""
    few = task[: min(len(task), 16 if task.inputs[0].numel() > LARGE_INPUT else len(task))]

    def ask() -> float:
        start = time.perf_counter()
        float(few.predictor.outputs(few.inputs, few.side).sum())
        return time.perf_counter() - start

    task.uncounted(ask)
    return float(task.uncounted(ask)) / len(few)


def warning(task: Task, panel: Panel, seats: Mapping[str, Seat], effort: Effort) -> str | None:
    """A sentence for whoever is about to wait long, or None."""
    rows = estimated_rows(task, panel, seats, effort)
    # some rows come with their gradient, which takes about twice as long again
    seconds = 1.5 * rows * seconds_a_row(task)
    if seconds < LONG_SECONDS:
        return None
    hours = seconds / 3600
    told = f"{hours:.1f} hours" if hours >= 2 else f"{seconds / 60:.0f} minutes"
    return (
        f"this audit asks the model about {rows:,} rows, perhaps {told} here; fewer samples=, fewer "
        "explainers=, effort='glance' or a GPU make it shorter"
    )
