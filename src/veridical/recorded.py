"""Passes over a task that may be played again, where its device and its model allow that."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from torch import Tensor

from veridical.predictor import Side
from veridical.task import Task


def recorded(
    task: Task,
    name: Hashable,
    run: Callable[[Task], tuple[Tensor, ...]],
    knows: Callable[[], Mapping[str, Tensor]] = dict,
) -> tuple[Tensor, ...]:
    """`run(task)`, where that follows from the task's inputs, side inputs, targets and weights alone.

    So it must not read ids, labels or masks, nor look at a value. `name` says all else that it depends on;
    the task's features, fill and reference rows go without saying. `knows()` gives, by name, what is used of
    that which the task keeps (see `Task.cached`): it may differ from one time to the next.
    """
    predictor = task.predictor
    if not predictor.records:
        return run(task)
    known = knows()
    names = tuple(task.side) if isinstance(task.side, dict) else None
    side = task.side.values() if isinstance(task.side, dict) else task.side

    def on(inputs: Tensor, targets: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        aside = others[: len(others) - len(known)]
        given: Side = aside if names is None else dict(zip(names, aside, strict=True))
        twin = task._derive(inputs=inputs, side=given, _targets=targets, _recorded=True)
        twin.__dict__["_cache"].update(zip(known, others[len(aside) :], strict=True))
        return run(twin)

    about = task.space, task.fill, task.train, task.__dict__["_train_facts"], predictor.output
    return predictor.replays(
        (name, names, tuple(known), task.head, *map(id, about)),
        predictor.model,
        (task.inputs, task.targets, *side, *known.values()),
        on,
        lambda: run(task),
        keep=about,
    )
