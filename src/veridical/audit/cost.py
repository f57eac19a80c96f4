"""How much an audit will ask of the model, told before it begins."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch

from veridical.audit.effort import LARGE_INPUT, Effort
from veridical.audit.panel import Panel, Seat, rows_of
from veridical.audit.reliability import enough_samples
from veridical.explainers import Explainer
from veridical.fidelity.metrics import Fidelity
from veridical.gef import GEF
from veridical.metrics import AnyMetric, ExplainerMetric
from veridical.metrics.faithfulness.faithfulness_correlation import FaithfulnessCorrelation
from veridical.model.predictor import take_side
from veridical.values.task import Task

SEARCHED_LEVELS = 20
"""About how many strengths of noise are tried before one is found."""
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
    if isinstance(metric, FaithfulnessCorrelation):
        return 0
    return int(getattr(metric, "steps", None) or 0)


def shared_rows(metric: AnyMetric) -> int:
    """Rows of a sample that serve all explainers of a world: subsets, and what noisy models answer."""
    inner = getattr(metric, "metric", metric)
    if isinstance(inner, FaithfulnessCorrelation):
        return inner.runs
    return inner.levels * inner.draws if isinstance(inner, GEF) else 0


def estimated_rows(task: Task, panel: Panel, seats: Mapping[str, Seat], effort: Effort) -> int:
    """About how many rows the searches, the scoring and the meta-evaluation will ask."""
    metrics = [seat.metric for seat in seats.values()]

    def a_world(explainers: Sequence[Explainer]) -> int:
        each = [rows_of(e, task) for e in explainers]
        own = sum(rows + sum(rows_of_metric(metric, task, rows) for metric in metrics) for rows in each)
        return own + sum(shared_rows(metric) for metric in metrics)

    everyone = [*panel.explainers.values(), *panel.controls.values()]
    cheapest = sorted(panel.explainers.values(), key=lambda e: rows_of(e, task))[: effort.meta_explainers]
    few = min(len(task), max(effort.meta_samples, enough_samples(task)))
    # the unperturbed world is visited twice, with the maps and with permuted ones
    worlds = 2 + 4 * effort.meta_draws * effort.meta_iterations
    searches = SEARCHED_LEVELS * effort.search_draws * (len(task) + 2 * few)
    standings = effort.standing_samples * effort.standing_draws * effort.flip_steps
    return searches + len(task) * a_world(everyone) + worlds * few * a_world(cheapest) + standings


def seconds_a_row(task: Task) -> float:
    """How long one row forward takes here, in a chunk as full as most are; the first time warms up."""
    large = task.inputs[0].numel() > LARGE_INPUT
    rows = min(len(task), 16) if large else max(len(task), min(task.predictor.rows, 1024))
    index = torch.arange(rows, device=task.device) % len(task)
    inputs, side = task.inputs[index], take_side(task.side, index)

    def ask() -> float:
        start = time.perf_counter()
        float(task.predictor.outputs(inputs, side).sum())
        return time.perf_counter() - start

    task.uncounted(ask)
    return float(task.uncounted(ask)) / rows


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
