"""What a task is and what it would take to explain and score it, estimated before anything runs."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field

import torch

from veridical.core.key import Key
from veridical.explainers.base import Explainer
from veridical.explainers.base import registry as explainers_by_name
from veridical.metrics.base import AnyMetric, ExplainerMetric
from veridical.metrics.base import registry as metrics
from veridical.models.cost import Cost
from veridical.models.predictor import take_side
from veridical.values.task import Task

TRIAL_SECONDS = 5.0
"""An explainer that takes less for one sample is tried on one."""
BACKWARD = 2
"""How many rows forward one row backward takes, about."""
METRIC_SECONDS = 15.0
"""After so long no further metric is tried."""
TIMED_ROWS = 64
"""How many rows are evaluated to see how long one takes."""


@dataclass(frozen=True)
class Diagnosis:
    """Which explainers and metrics apply to a task, what they cost, and what looks odd."""

    about: list[str]
    """What the task is, one fact per line."""
    rows: dict[str, int]
    """Explainers that apply, by name: about how many rows forward one map takes."""
    metrics: dict[str, int | str]
    """Metrics that apply, by name: about how many rows forward one score takes, or why that is unknown."""
    left_out: dict[str, str]
    """Explainers and metrics that do not apply, and why."""
    seconds_per_row: float
    """How long this machine takes to answer one row, in chunks."""
    warnings: list[str] = field(default_factory=list)
    """What should be looked at first."""

    def minutes(self, rows: float) -> float:
        """About how long so many rows take."""
        return rows * self.seconds_per_row / 60


def diagnose(task: Task) -> Diagnosis:
    """Look at a task: what it is, what applies, what one map costs. Cheap maps are tried on one sample."""
    left_out: dict[str, str] = {}
    rows: dict[str, int] = {}
    pace = seconds_per_row(task)
    for name in explainers_by_name:
        made = explainers_by_name.make(name)
        reason = made.inapplicable_reason(task)
        try:
            if reason is None:
                rows[name] = _rows(made, task, pace)
        except Exception as error:  # a model may raise anything; better now than in an hour
            reason = f"it failed on the first sample: {error}"
        if reason is not None:
            left_out[name] = reason
    scoring: dict[str, int | str] = {}
    until = time.monotonic() + METRIC_SECONDS
    for name in metrics:
        metric = metrics.make(name)
        reason = metric.inapplicable_reason(task)
        if reason is not None:
            left_out[name] = reason
        else:
            late = time.monotonic() >= until
            scoring[name] = (
                f"not tried: {METRIC_SECONDS:.0f} s were over" if late else scoring_rows(metric, task)
            )
    return Diagnosis(_about(task), rows, scoring, left_out, pace, _warnings(task))


def _about(task: Task) -> list[str]:
    lines = [repr(task), f"kind of input: {task.modality}; removed features become: {task.fill.name}"]
    lines.append(f"reference rows: {'none' if task.train is None else len(task.train)}")
    if not task.predictor.differentiable:
        lines.append("no gradients: only the model's outputs can be evaluated")
    if task.inputs.is_floating_point() and bool(task.inputs.isnan().any()):
        lines.append(f"missing values: in {int(task.inputs.isnan().flatten(1).any(1).sum())} samples")
    return lines


def _warnings(task: Task) -> list[str]:
    found = []
    if task.labels is not None and task.head in ("multiclass", "binary"):
        right = float((task.predictions == task.labels).double().mean())
        if right <= 1.5 / task.n_outputs and right < 0.9:
            found.append(
                f"the model is right in {right:.0%} of samples, hardly more than guessing: are inputs "
                "prepared and labels numbered as in training?"
            )
    if (
        task.head not in ("regression", "generation")
        and len(task) > 1
        and len(task.predictions.unique()) == 1
    ):
        found.append(f"the model predicts class {int(task.predictions[0])} for every sample")
    if task.train is None and task.modality == "table":
        found.append("no reference rows (--train): removed columns become zero, which may mean nothing here")
    if len(task) < 16:
        found.append(f"{len(task)} samples are few: intervals will be wide")
    return found


def _rows(explainer: Explainer, task: Task, pace: float) -> int:
    """What a map of the first sample costs: counted where that is soon done, else as declared."""
    one = task[:1].changed(alone=True)
    declared = _weighed(explainer._declared(one))
    return declared if declared * pace > TRIAL_SECONDS else _weighed(explainer(one, Key(0)).cost)


def _weighed(cost: Cost) -> int:
    """Rows forward, with those backward counted as rows forward that take as long."""
    return cost.forward + BACKWARD * cost.backward


def scoring_rows(metric: AnyMetric, task: Task) -> int | str:
    """What the score of one map costs, tried on two samples with random maps, or why that fails.

    A metric that explains again is tried with a method that evaluates nothing.
    """
    two = task[:2].changed(alone=True)
    chance = explainers_by_name.make("random")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subject = chance if isinstance(metric, ExplainerMetric) else chance(two, Key(0))
            cost = metric(two, subject, Key(0)).cost  # type: ignore[operator]
    except Exception as error:  # a model may raise anything
        return f"not known: {str(error).partition(chr(10))[0][:99]}"
    return -(-_weighed(cost) // len(two))


def seconds_per_row(task: Task) -> float:
    """How long the machine takes for some rows, evaluated after others have warmed it up."""
    count = TIMED_ROWS if task.predictor.padded_to > 1 else 2  # a row may take half a second
    places = torch.arange(count, device=task.device) % len(task)
    rows, side = task.inputs[places], take_side(task.side, places)
    _ = task.outputs
    begin = time.perf_counter()
    task.uncounted(lambda: task.predictor.outputs(rows, side))
    return (time.perf_counter() - begin) / count
