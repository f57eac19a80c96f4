"""From a study file to its plan: names become objects, what cannot work is set aside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from veridical.errors import InputError, VeridicalError
from veridical.explainers import Explainer
from veridical.metrics import AnyMetric, Metric
from veridical.study.grid import Choice, Grid, expand
from veridical.study.loading import identify_task, is_ranged, load_task
from veridical.study.plan import PlannedTask, PlannedThing, StudyPlan, digest_of
from veridical.study.preparations import preparations
from veridical.study.resolve import Identity, identify, make_explainer, make_metric
from veridical.study.study_file import StudyFile
from veridical.values.task import Task


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Run with the study's threads, and put the caller's back."""
    before = torch.get_num_threads()
    try:
        if count is not None and count != before:
            torch.set_num_threads(count)
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def make_plan(file: StudyFile, allow_code: bool = False) -> StudyPlan:
    """Resolve a study; mistakes are told with the line of the file they are in."""
    spec, grid = file.spec, expand(file)
    explainers = {c.label: _at(file, c, make_explainer, allow_code) for c in grid.explainers}
    metrics = {c.label: _at(file, c, make_metric, allow_code) for c in grid.metrics}
    known_explainers = {c.label: identify(explainers[c.label], c) for c in grid.explainers}
    known_metrics = {c.label: identify(metrics[c.label], c) for c in grid.metrics}
    _refuse_twins(file, grid, known_explainers, known_metrics)
    tasks, skipped = [], []
    with torch_threads(spec.plan.threads):
        for choice in grid.tasks:
            planned, task = _at(file, choice, _planned_task, allow_code, file, explainers)
            tasks.append(planned)
            skipped += _skipped(choice.label, task, explainers, metrics)
    return StudyPlan(
        spec.name,
        tuple(tasks),
        tuple(PlannedThing(c, k.content, k.cached) for c, k in _pairs(grid.explainers, known_explainers)),
        tuple(
            PlannedThing(
                c,
                k.content,
                k.cached,
                "map" if isinstance(metrics[c.label], Metric) else "method",
                tuple(tuple(preparations(metrics[c.label], seed)) for seed in grid.seeds),
            )
            for c, k in _pairs(grid.metrics, known_metrics)
        ),
        grid.seeds,
        spec.plan.threads,
        spec.shards,
        spec.shard_size,
        spec.device,
        spec.keep_explanations,
        tuple(sorted({m for k in (*known_explainers.values(), *known_metrics.values()) for m in k.modules})),
        tuple(skipped),
        spec.resources.given(),
        spec.limits.given(),
    )


def _planned_task(
    choice: Choice, allow_code: bool, file: StudyFile, explainers: dict[str, Explainer]
) -> tuple[PlannedTask, Task]:
    spec = file.spec
    ranged = is_ranged(choice, allow_code)
    first = None
    if ranged:
        assert choice.samples is not None
        size = spec.shard_size or -(-choice.samples // (spec.shards or 1))
        first = (0, min(size, choice.samples))
    task = load_task(
        choice,
        rows=spec.plan.rows,
        threads=spec.plan.threads,
        device=spec.device,
        allow_code=allow_code,
        shard=first,
    )
    digest, cached = identify_task(None if ranged else task, choice)
    samples = choice.samples if ranged and choice.samples is not None else len(task)
    draws = {label: explainer.draws_on(task) for label, explainer in explainers.items()}
    return PlannedTask(choice, digest, cached, samples, task.predictor.rows, ranged, draws), task


def _skipped(
    label: str, task: Task, explainers: dict[str, Explainer], metrics: dict[str, AnyMetric]
) -> list[dict[str, str]]:
    """What does not apply to a task is no failure of a cell: it is known before, and said."""
    found = []
    for who, explainer in explainers.items():
        reason = explainer.why_not(task)
        if reason is not None:
            found.append({"task": label, "explainer": who, "metric": "", "reason": reason})
    for what, metric in metrics.items():
        reason = metric.why_not(task)
        if reason is not None:
            found.append({"task": label, "explainer": "", "metric": what, "reason": reason})
    return found


def _refuse_twins(
    file: StudyFile, grid: Grid, explainers: dict[str, Identity], metrics: dict[str, Identity]
) -> None:
    """Two labels for the same thing would be one cell under two names."""
    for choices, known in ((grid.explainers, explainers), (grid.metrics, metrics)):
        seen: dict[str, str] = {}
        for choice in choices:
            digest = digest_of(known[choice.label].content)
            if digest in seen:
                raise file.error(choice.place, f"'{choice.label}' is the same as '{seen[digest]}'")
            seen[digest] = choice.label


def _at(file: StudyFile, choice: Choice, make: Any, *rest: Any) -> Any:
    """Make something, and tell what goes wrong with the line that asked for it."""
    try:
        return make(choice, *rest)
    except VeridicalError as error:
        raise file.error(choice.place, f"{choice.label}: {error}") from error
    except TypeError as error:
        # a class of the user's that does not take these settings
        raise file.error(choice.place, f"{choice.label}: {error}") from error


def _pairs(choices: tuple[Choice, ...], known: dict[str, Identity]) -> list[tuple[Choice, Identity]]:
    return [(choice, known[choice.label]) for choice in choices]


def nothing_applies(plan: StudyPlan) -> InputError:
    """The error for a study without a single cell."""
    reasons = "; ".join(
        f"{s['explainer'] or s['metric']} on {s['task']}: {s['reason']}" for s in plan.skipped
    )
    return InputError(f"not one cell of this study can be computed: {reasons}")
