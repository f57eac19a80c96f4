"""Maps made again within one metric: of variants of the samples, of perturbed models, of reference rows.

Each is one batched call, and one check for all at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional._rows import whole_largest
from veridical.metrics import Explainer, Key, Task
from veridical.models.context import Context
from veridical.models.predictor import check_finite, take_side

Explain = Callable[[Task, Key], Tensor]


class Maps:
    """`explain(task, key)` gives maps (N, V), and remembers what has to be known of them."""

    largest: Tensor
    """The largest |e| of each map made last (N,); NaN and infinity both show in it."""
    missing: Tensor
    """Which of the maps made last are NaN throughout (N,): their samples could not be explained."""

    def __init__(self, explainer: Explainer, context: Context) -> None:
        self._explainer, self._context = explainer, context
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __call__(self, task: Task, key: Key) -> Tensor:
        explainer = self._explainer
        values = explainer._values_on(task, self._context.with_key(key))
        absent, valid = values.isnan(), explainer._space_of(task).valid
        absent = absent if valid is None else absent | ~valid
        self.largest, self.missing = whole_largest(values)[:, 0], absent.all(-1)
        self.seen.append((self.largest, self.missing))
        return values


def one_session(task: Task, explainer: Explainer) -> AbstractContextManager[object]:
    """A session around those of many maps, unless an explainer would meet it that opens none itself."""
    return task.predictor.session(grad=None) if explainer._plain else nullcontext()


@contextmanager
def explaining(explainer: Explainer, context: Context, *tasks: Task) -> Iterator[Maps]:
    """`with explaining(explainer, context, task) as explain: explain(other, key)` gives other tasks' maps.

    Each holds the samples of the task once or several times over; of several tasks, one behind the other.
    A map must be finite, or NaN throughout to say that a sample could not be explained; what was wrong with
    any of the maps is raised when the block ends.
    """
    maps = Maps(explainer, context)
    yield maps
    if maps.seen:
        counts = [len(task) for task in tasks]
        _refuse_broken(explainer.name, maps.seen, counts)


def _refuse_broken(name: str, seen: list[tuple[Tensor, Tensor]], counts: list[int]) -> None:
    """Raise where a map is neither finite nor NaN throughout, given largest sizes and which are all NaN."""
    sizes, gaps = (torch.cat(parts) for parts in zip(*seen, strict=True))
    fine = ((sizes < torch.inf) | gaps).unflatten(0, (-1, sum(counts))).all(0)
    if bool(fine.all()):
        return
    for of_task in fine.logical_not().split(counts):
        bad = of_task.nonzero().reshape(-1)[:5].tolist()
        if bad:
            raise InputError(
                f"the map of '{name}' is NaN or infinite in samples {bad}; "
                "a map must be finite (or NaN throughout, to say that a sample could not be explained)"
            )


def at_once(explainer: Explainer, task: Task, draws: int) -> int:
    """How many of a metric's draws are explained in one call: as many as one chunk holds.

    One at a time for a method that draws numbers of its own, as every draw has another key.
    """
    return max(1, min(draws, samples_at_once(explainer, task) // len(task)))


def samples_at_once(explainer: Explainer, task: Task) -> int:
    """How many samples one call explains; 0 where calls must stay apart."""
    if not explainer._plain or explainer._draws_on(task):
        return 0
    return task.predictor.rows // max(1, explainer.rows_per_sample(explainer._prepared(task)))


def explained_variants(
    explain: Maps,
    explainer: Explainer,
    task: Task,
    count: int,
    variants: Callable[[range], Task],
    key: Key,
    first_number: int = 0,
) -> Iterator[tuple[range, Task, Tensor]]:
    """Explain the samples (variant 0) and `count` variants of them, as many as fit a chunk in one call.

    `variants(which)` is the task that holds the samples under each of these, one copy of all after the other;
    yields which, their task, and maps (variants, N, V). A method with draws of its own gets a fresh key for
    every variant, as it is scored with its own noise.
    """
    times = at_once(explainer, task, 1 + count)
    for first in range(0, 1 + count, times):
        which = range(first, min(first + times, 1 + count))
        own = key / "explain" / (first - 1 + first_number) if first else key / "clean"
        near = variants(which)
        yield which, near, explain(near, own).unflatten(0, (-1, len(task)))


def stacked(task: Task, times: int, inputs: Tensor | None = None) -> Task:
    """The samples of a task `times` over, one copy of all after the other; at these inputs, if given."""
    if times == 1:
        return task if inputs is None else task.with_inputs(inputs)
    if task.side or task.reference is not task or task.space.take(slice(None)) is not task.space:
        copies = task[torch.arange(len(task), device=task.device).repeat(times)]
        return copies if inputs is None else copies.with_inputs(inputs)
    held = {name: getattr(task, name) for name in ("ids", "draw_ids", "masks", "labels", "targets")}
    held |= {"inputs": task.inputs} if inputs is None else {}
    again: dict[str, Any] = {
        name: None if value is None else value.repeat(times, *[1] * (value.dim() - 1))
        for name, value in held.items()
    }
    again |= {} if inputs is None else {"inputs": inputs.to(task.inputs.dtype)}
    return task.changed(alone=True, estimates=dict(task.estimates), **again)


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


def explained_beside(task: Task, explainer: Explainer, count: int, context: Context) -> Beside:
    """Explain the samples and the first `count` reference rows, each for its own prediction."""
    rows = _reference_rows(task, count)
    with one_session(task, explainer):
        with task.session():
            outputs = task.predictor.chunk(rows.inputs, rows.side)
        check_finite(outputs)
        own, others = task.predictions, outputs.argmax(-1)
        parts = []
        for some, targets, purpose in ((task, own, "samples"), (rows, others, "references")):
            explained = some.changed(alone=True, targets=targets)
            with explaining(explainer, context, explained) as explain:
                parts.append((explain(explained, context.key / purpose), explain.missing))
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
