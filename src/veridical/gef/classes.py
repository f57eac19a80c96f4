"""Tasks whose samples are classes, for explanations of a whole class (feature visualisation)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError
from veridical.models.predictor import take_side
from veridical.values.space import Space
from veridical.values.task import Task


def class_task(task: Task, classes: Sequence[int] | None = None, rows_per_class: int = 32) -> Task:
    """The same model where each sample stands for a class, for explanations that have no input.

    Its `members` are the reference rows (the task's `train`, else its inputs) that the model predicts to be
    of these classes, at most `rows_per_class` of each: GEF's model distortion of class c is the mean over
    them of |y_c - y_hat_c|. By default all classes that are predicted at all. The features are the elements
    of an input. Metrics and explainers that need an input refuse such a task.
    """
    if task.members is not None:
        raise InputError("the samples of this task are classes already")
    if task.head in ("regression", "generation"):
        raise NotApplicableError(f"a {task.head} has no classes")
    if task.modality == "text" or not task.inputs.is_floating_point():
        raise NotApplicableError("tokens have no picture; classes are visualised on inputs of real numbers")
    if rows_per_class < 1:
        raise InputError(f"each class needs at least one row, got rows_per_class={rows_per_class}")
    rows = task.inputs if task.train is None else task.train
    side = task.side if task.train is None else task.train_side
    if len(side):
        raise NotApplicableError("the model takes side inputs, which a class does not have")
    predicted = task.uncounted(lambda: task.predictor.outputs(rows)).argmax(-1)
    found = predicted.unique().tolist()
    chosen = found if classes is None else [int(c) for c in classes]
    if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(task.n_outputs)):
        raise InputError(
            f"classes are different numbers from 0 to {task.n_outputs - 1}, at least one; got {chosen}"
        )
    absent = sorted(set(chosen) - set(found))
    if absent:
        raise InputError(
            f"the model predicts none of its {len(rows)} reference rows to be of class {absent[:5]}; choose "
            "among the others, or give the task train=... with such rows"
        )
    index = _members(predicted, chosen, rows_per_class)
    members = task.changed(
        alone=True,
        inputs=rows[index],
        side=take_side(side, index),
        ids=index,
        labels=None,
        masks=None,
        space=Space.of(rows).to(task.device),
        targets=predicted[index],
    )
    targets = torch.tensor(chosen, device=task.device)
    # the mean row stands in where an input is asked for its shape
    stand_in = rows.mean(0, keepdim=True).expand(len(chosen), *rows.shape[1:]).contiguous()
    return task.changed(
        alone=True,
        inputs=stand_in,
        ids=targets,
        labels=None,
        masks=None,
        space=Space.elements(tuple(rows.shape[1:])).to(task.device),
        targets=targets,
        members=members,
    )


def _members(predicted: Tensor, classes: Sequence[int], most: int) -> Tensor:
    """A keyed choice of at most `most` rows of each class, in their order: sets are often sorted."""
    order = keyed.bits(Key(0) / "members", torch.arange(len(predicted)), 0, 1)[:, 0].argsort()
    own = predicted.cpu()[order]
    picked = [order[own == c][:most] for c in classes]
    return torch.cat(picked).sort().values.to(predicted.device)
