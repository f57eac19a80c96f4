"""Reference rows as samples of their own, for metrics that compare explanations between inputs."""

from __future__ import annotations

from functools import partial

from veridical.constants import counting
from veridical.deferred import look_later
from veridical.predictor import check_finite, take_side
from veridical.task import Task


def why_no_references(task: Task) -> str | None:
    """Why reference rows cannot be explained beside the samples and compared, or None if they can."""
    if task.head == "regression":
        return "it compares predicted classes, and a regression has none"
    if task.space.valid is not None or task.space.per_sample:
        return "features differ between samples, so reference rows have no comparable maps"
    if task.side and not task.train_side:
        return "the model takes side inputs; give those of the reference rows as train_side=..."
    return None


def for_predictions(task: Task) -> Task:
    """`task.with_targets(task.predictions)` without its check, which would wait for a GPU."""
    twin = task._derive(_targets=task.predictions)
    twin.__dict__["_cache"]["outputs"] = task.outputs
    return twin


def reference_task(task: Task, count: int) -> Task:
    """The first `count` reference rows as samples of a task of their own, explained for their predictions."""
    assert task.train is not None
    few = slice(0, count)
    rows, side = task.train[few], take_side(task.train_side, few)
    ids = counting(len(rows), task.device)
    with task.session():
        outputs = task.predictor.chunk(rows, side)
    look_later(outputs.device, partial(check_finite, outputs))
    predicted = outputs.argmax(-1)
    others = task._derive(inputs=rows, side=side, ids=ids, masks=None, labels=None, _targets=predicted)
    others.__dict__["reference"] = others
    return others
