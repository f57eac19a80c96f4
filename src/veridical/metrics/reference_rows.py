"""Reference rows explained beside the samples, for metrics that compare explanations between inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.metrics.re_explaining import explaining, one_session, samples_at_once
from veridical.metrics.types import Explainer, Key, Task
from veridical.models.predictor import Side, check_finite, take_side


def why_no_references(task: Task) -> str | None:
    """Why reference rows cannot be explained beside the samples and compared, or None if they can."""
    if task.head in ("regression", "generation"):
        return f"it compares predicted classes, and a {task.head} has none"
    if task.space.valid is not None or task.space.per_sample:
        return "features differ between samples, so reference rows have no comparable maps"
    if task.side and not task.train_side:
        return "the model takes side inputs; give those of the reference rows as train_side=..."
    return None


@dataclass(frozen=True, eq=False)
class Beside:
    """Maps of a task's samples and, behind them, of its reference rows, each for its own prediction."""

    maps: Tensor
    missing: Tensor
    own: Tensor
    """The predictions of the samples."""
    others: Tensor
    """The predictions of the reference rows."""


def explained_beside(task: Task, explainer: Explainer, count: int, key: Key) -> Beside:
    """Explain the samples and the first `count` reference rows, in one call where one chunk holds all."""
    rows = _reference_rows(task, count)
    with one_session(task, explainer):
        with task.session():
            outputs = task.predictor.chunk(rows.inputs, rows.side)
        check_finite(outputs)
        own, others = task.predictions, outputs.argmax(-1)
        if samples_at_once(explainer, task) < len(task) + len(rows):
            return _one_by_one(task, rows, explainer, key, own, others)
        # the same for every method that is judged
        together = task.latest("beside reference rows", count, lambda: _joined(task, rows))
        with explaining(explainer, task, rows) as explain:
            maps = explain(_explained_for(together, torch.cat([own, others])), key / "samples")
    return Beside(maps, explain.missing, own, others)


def _one_by_one(
    task: Task, rows: Task, explainer: Explainer, key: Key, own: Tensor, others: Tensor
) -> Beside:
    samples = task.changed(targets=own, outputs=task.outputs)
    parts = []
    for some, purpose in ((samples, "samples"), (_explained_for(rows, others), "references")):
        with explaining(explainer, some) as explain:
            parts.append((explain(some, key / purpose), explain.missing))
    maps, missing = (torch.cat(each) for each in zip(*parts, strict=True))
    return Beside(maps, missing, own, others)


def _reference_rows(task: Task, count: int) -> Task:
    """The first `count` reference rows as samples of a task of their own."""
    assert task.train is not None
    few = slice(0, count)
    rows, side = task.train[few], take_side(task.train_side, few)
    return task.changed(
        inputs=rows, side=side, ids=torch.arange(len(rows), device=task.device), masks=None, labels=None
    )


def _joined(task: Task, rows: Task) -> Task:
    """The samples, and behind them the reference rows."""
    side: Side = (
        {name: torch.cat([value, rows.side[name]]) for name, value in task.side.items()}  # type: ignore[call-overload]
        if isinstance(task.side, dict)
        else tuple(torch.cat(both) for both in zip(*(each.side for each in (task, rows)), strict=True))
    )
    inputs, ids, draw_ids = (
        torch.cat([getattr(task, name), getattr(rows, name)]) for name in ("inputs", "ids", "draw_ids")
    )
    return task.changed(inputs=inputs, ids=ids, draw_ids=draw_ids, side=side, masks=None, labels=None)


def _explained_for(task: Task, targets: Tensor) -> Task:
    """A task of its own for these outputs, unchecked, as they are the model's: a check waits for a GPU."""
    return task.changed(alone=True, targets=targets)
