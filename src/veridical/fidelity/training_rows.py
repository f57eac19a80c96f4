"""The rows a copy of the model learns from: their targets, their features, and what removes these."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError, ShapeError, VeridicalWarning
from veridical.fidelity.correctness import accuracy, at_chance, check_labels, own_answers
from veridical.fidelity.datasets import Columns, Streamed, is_dataset
from veridical.fidelity.digests import row_digests, tensor_bytes
from veridical.fidelity.removal import budget
from veridical.models.predictor import Side, take_side
from veridical.perturb.fills import Fill
from veridical.values.input_checks import side_of, tensor_of
from veridical.values.space import Space
from veridical.values.task import Task

UNSEEN_GAP = 0.1
"""How far accuracy on the training rows may lie below that on the evaluated ones before we say so."""
READ_AT_ONCE = 1024
"""Rows read together in the one pass over all of them before training."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows with what removes features from them.

    `inputs` may be read as it is asked for; all else is held. `answers` are the original model's own.
    """

    inputs: Tensor | Streamed
    targets: Tensor
    side: Side
    space: Space
    fill: Fill
    fill_state: Tensor | None
    answers: Tensor
    digests: Tensor
    """One digest per row (rows, 12), by which an artefact knows later whether it has met a row."""
    content: str
    """A digest of the inputs, every bit in their order."""
    origin: str
    """Where targets came from: "given", or "predicted" by the model."""

    def masked(self, index: Tensor, beta: float, key: Key, draw: int) -> Tensor:
        """Rows with a count uniform on {0..B} of features each removed, all channels together."""
        space = self.space.take(index)
        n = space.counts(len(index)).to(index.device)
        most = budget(n, beta)
        counts = keyed.integers(key / "count", index, draw, 1, (most + 1)[:, None])
        ranks = keyed.random_ranks(key / "mask", index, draw, space.n_features, space.valid)
        return self.without(ranks < counts, index, key / "fill" / draw)

    def without(self, removed: Tensor, index: Tensor, key: Key) -> Tensor:
        """The rows `index` with the features `removed` (rows, V) filled."""
        x, removed = self.inputs[index], self.space.take(index).expand(removed)
        if self.fill.looks_at_mask:
            return self.fill.impute(x, removed, index, key)
        background = self.fill.background(self.fill_state, x, index, key)[:, 0]
        return torch.where(removed, background, x)

    def task(self, task: Task, index: Tensor) -> Task:
        """The task over some of these rows, explained for their targets where these are classes."""
        made = task.changed(
            alone=True,
            targets="predicted",
            inputs=self.inputs[index],
            side=take_side(self.side, index),
            space=self.space.take(index),
            labels=self.targets[index],
            masks=None,
            ids=index,
        )
        if made.undecided:  # of several quantities that which the task explains most
            return made.with_targets(int(task.targets.mode().values))
        return made.with_targets(self.targets[index]) if task.head in ("multiclass", "binary") else made


def training_rows(
    task: Task,
    train: Any = None,
    train_side: Side | None = None,
    train_space: Space | None = None,
    columns: Columns | None = None,
) -> Rows:
    """The rows to learn from; without labels the model's own answers are their targets."""
    inputs, labels, side = _given(task, train, columns)
    if inputs is None or len(inputs) < 2:
        count = 0 if inputs is None else len(inputs)
        raise InputError(f"fine-tuning needs at least 2 rows (one is held out), got {count}")
    if train_side is not None:
        side = side_of(train_side, len(inputs), task.device)
    if labels is not None and len(labels) != len(inputs):
        raise ShapeError(f"{len(labels)} training labels for {len(inputs)} training rows")
    streamed = isinstance(inputs, Streamed)
    if bool(task.side) and not bool(side) and not streamed:
        raise InputError("the task has side inputs; give those of the training rows with train_side=...")
    never = None if train_space is not None or task.space.valid is None else never_features(task)
    answers, digests, valid, seen, beside = [], [], [], [], []
    content = hashlib.blake2b(digest_size=16)
    for index in torch.arange(len(inputs), device=task.device).split(READ_AT_ONCE):
        own = take_side(side, index) if side else side
        if isinstance(inputs, Streamed):
            x, label, found = inputs.batch(index)
            seen += [] if label is None else [label]
            if found:
                own = found
                beside.append(found)
        else:
            x = inputs[index]
        answers.append(own_answers(task.uncounted(partial(task.predictor.outputs, x, own)), task))
        digests.append(row_digests(x))
        content.update(tensor_bytes(x))
        valid += [] if never is None else [~torch.isin(x, never)]
    if streamed:
        labels = torch.cat(seen) if seen else None
        side = {name: torch.cat([part[name] for part in beside]) for name in beside[0]} if beside else side
    said = torch.cat(answers)
    targets, origin = said, "predicted"
    if labels is not None:
        targets, origin = check_labels(labels, task, "training labels"), "given"
        _check_seen(task, said, targets)
    space = train_space or task.space
    if valid:
        space = replace(task.space, valid=torch.cat(valid), names=None)
    state = task.fill.prepare(task.train if task.train is not None else _reference(inputs), task.space)
    return Rows(
        inputs,
        targets,
        side,
        space.to(task.device),
        task.fill,
        state,
        said,
        torch.cat(digests),
        content.hexdigest(),
        origin,
    )


def _given(
    task: Task, train: Any, columns: Columns | None
) -> tuple[Tensor | Streamed | None, Tensor | None, Side]:
    """Inputs, labels and side inputs in whichever form they come."""
    if train is None:
        return task.train, task.train_labels, task.train_side
    if is_dataset(train):
        names = tuple(task.side) if isinstance(task.side, Mapping) else ()
        return Streamed(train, columns, names, task.inputs), None, ()
    if isinstance(train, Mapping):
        raise InputError(
            f"training rows come from one set, got a {type(train).__name__} of {', '.join(map(str, train))}; "
            "give one of them, as in dataset['train']"
        )
    given, labels = train if isinstance(train, tuple) and len(train) == 2 else (train, None)
    if isinstance(given, list | str | bytes | tuple) or not hasattr(given, "__len__"):
        raise InputError(
            "training rows are an array, a pair (rows, labels), a torch Dataset or DataLoader, or a Hugging "
            f"Face dataset; got a {type(train).__name__}"
        )
    inputs = tensor_of(given, "train", None).to(task.inputs)
    if inputs.shape[1:] != task.inputs.shape[1:]:
        raise ShapeError(
            f"training rows have shape {tuple(inputs.shape[1:])}, the task's inputs "
            f"{tuple(task.inputs.shape[1:])}"
        )
    return inputs, None if labels is None else torch.as_tensor(labels).to(task.device), ()


def _reference(inputs: Tensor | Streamed) -> Tensor:
    """Rows a fill may take its values from, where the task has none of its own."""
    if isinstance(inputs, Tensor):
        return inputs
    return inputs[torch.arange(min(len(inputs), READ_AT_ONCE), device=inputs.device)]


def _check_seen(task: Task, answers: Tensor, targets: Tensor) -> None:
    """Refuse rows the model cannot have been trained on, and warn of rows it knows far less well."""
    reason = at_chance(answers, targets, task)
    if reason is not None:
        raise InputError(
            f"these training rows (or their labels) are none the model has learnt: {reason}. Fine-tuning on "
            "them would teach another task; pass the rows the model was trained on, with labels in its order"
        )
    if task.labels is None or task.head == "regression":
        return
    here = accuracy(own_answers(task.outputs, task), check_labels(task.labels, task), task)
    there = accuracy(answers, targets, task)
    if there < here - UNSEEN_GAP:
        warnings.warn(
            f"the model is right on {there:.1%} of the training rows and on {here:.1%} of the evaluated "
            "ones: it may never have seen these training rows",
            VeridicalWarning,
            stacklevel=4,
        )


def never_features(task: Task) -> Tensor | None:
    """Token ids (pads, special tokens) that stand only where no feature is; None where that tells nothing."""
    if task.space.kind != "token" or task.inputs.is_floating_point() or task.space.valid is None:
        return None
    outside = task.inputs[~task.space.valid].unique()
    inside = task.inputs[task.space.valid].unique()
    return outside[~torch.isin(outside, inside)]
