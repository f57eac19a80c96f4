"""Carrying out a job, on whatever worker: the same bits wherever and whenever it is done.

Every job works on a task derived anew from the loaded one, so that what an earlier job left in a task's cache
changes neither a value nor a count; threads and chunk plan are the study's.
"""

from __future__ import annotations

import gc
import os
import socket
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from veridical.core.key import Key
from veridical.errors import FormatError, InputError, VeridicalError
from veridical.metrics import ExplainerMetric, Metric
from veridical.models.cost import Cost
from veridical.study.cells import read_map, to_parquet
from veridical.study.plan import PlannedTask, StudyJob, StudyPlan, torch_threads
from veridical.study.preparations import equipped, prepare
from veridical.study.resolve import identify_task, load_task, make_explainer, make_metric
from veridical.values.explanation import Explanation
from veridical.values.task import Task

KEPT_TASKS = 2
_tasks: dict[tuple[Any, ...], Task] = {}
"""The tasks this process loaded last, by content digest and how they run; `forget` empties it."""


@dataclass(frozen=True)
class Work:
    """A job with all that a worker needs for it.

    The plan's axes may be left out. `prepared` says what is prepared under which hash. `files` are the
    results of the jobs that it needs, by hash: as paths, or as bytes for workers elsewhere.
    """

    job: StudyJob
    plan: StudyPlan
    prepared: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, Path | bytes]
    allow_code: bool


@dataclass(frozen=True)
class Result:
    """The content of the file that a job makes, and what it took."""

    content: bytes = field(repr=False)
    cost: Cost
    seconds: float
    host: str
    pid: int
    warnings: tuple[str, ...] = ()


class FailedJobError(VeridicalError):
    """What a job raised, as text: an exception of a user's own may not travel."""

    def __init__(self, error: str, trace: str = "", seconds: float = 0.0) -> None:
        super().__init__(error, trace, seconds)
        self.trace, self.seconds = trace, seconds

    def __str__(self) -> str:
        return str(self.args[0])


def carry_out(work: Work) -> Result:
    """Do a job; what goes wrong is raised as `FailedJobError`."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught, torch_threads(work.plan.threads):
        warnings.simplefilter("always")
        try:
            for thing in filter(None, (work.job.explainer, work.job.metric)):
                for module in thing.modules:
                    import_module(module)
            content, cost = KINDS[work.job.kind](work)
        except Exception as problem:
            seconds, error = time.perf_counter() - began, f"{type(problem).__name__}: {problem}"
            raise FailedJobError(error, traceback.format_exc(), seconds) from None
    caught_texts = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    seconds = time.perf_counter() - began
    return Result(content, cost, seconds, socket.gethostname(), os.getpid(), caught_texts)


def forget() -> None:
    """Let go of the tasks that were loaded here."""
    _tasks.clear()


def _prepare(work: Work) -> tuple[bytes, Cost]:
    task, metric = _task(work), work.job.metric
    assert metric is not None
    before = task.predictor.meter.cost
    made = make_metric(metric.choice, work.allow_code)
    content = prepare(work.job.facts, made, task, work.job.hash)
    return content, task.predictor.meter.cost - before


def _explain(work: Work) -> tuple[bytes, Cost]:
    explanation = _explained(work, work.job.seed)
    return explanation.to_bytes(work.job.hash), explanation.cost


def _score(work: Work) -> tuple[bytes, Cost]:
    job, task = work.job, _task(work)
    assert job.metric is not None
    assert job.explainer is not None
    metric = make_metric(job.metric.choice, work.allow_code)
    plain = metric.to_json()
    for hash, facts in work.prepared.items():
        metric = equipped(metric, task, hash, facts, work.files[hash])
    if isinstance(metric, ExplainerMetric):
        scores = metric(task, make_explainer(job.explainer.choice, work.allow_code), Key(job.seed))
    elif isinstance(metric, Metric):
        scores = metric(task, _map(work), Key(job.seed))
    else:
        raise InputError(f"'{metric.name}' evaluates neither maps nor methods")
    # the file a fine-tuned model lies in is this machine's affair
    scores = replace(scores, provenance={**scores.provenance, "metric": plain})
    return to_parquet(scores, job.labels, work.plan.settings(job), job.hash), scores.cost


KINDS = {"prepare": _prepare, "explain": _explain, "score": _score}


def _map(work: Work) -> Explanation:
    """The explanation a cell rests on; made again if it is gone, as another run may have dropped it."""
    job, hash = work.job, work.job.needs[-1]
    try:
        return read_map(work.files[hash], hash, job.samples)
    except (FormatError, KeyError):
        assert job.explainer is not None
        return _explained(work, job.seed if job.task.draws[job.explainer.label] else 0)


def _explained(work: Work, seed: int) -> Explanation:
    assert work.job.explainer is not None
    return make_explainer(work.job.explainer.choice, work.allow_code)(_task(work), Key(seed))


def _task(work: Work) -> Task:
    """The rows of a job, as a task that nothing has touched."""
    planned = work.job.task
    key = (planned.digest, planned.label, planned.rows, work.plan.threads, work.plan.device)
    if key not in _tasks:
        while len(_tasks) >= KEPT_TASKS:
            _tasks.pop(next(iter(_tasks)))
            gc.collect()  # a task points at itself
        _tasks[key] = load_planned(planned, work.plan, work.allow_code)
    task = _tasks[key][slice(*work.job.shard)]
    return task.changed(estimates=task.estimates)


def load_planned(planned: PlannedTask, plan: StudyPlan, allow_code: bool) -> Task:
    """The task that was planned; InputError where it is another by now."""
    task = load_task(planned.choice, planned.rows, plan.threads, plan.device, allow_code)
    if len(task) != planned.samples or identify_task(task, planned.choice)[0] != planned.digest:
        raise InputError(
            f"the task '{planned.label}' is another here than when the study was planned ({len(task)} rows, "
            f"{planned.samples} expected): its data, model or code has changed; run the study again"
        )
    return task
