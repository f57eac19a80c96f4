"""Training rows of a fine-tuning: tensors, torch datasets and loaders, or Hugging Face datasets.

Rows of a dataset are read when a batch needs them and never all held. Which row joins which batch is keyed,
so the batches and the order of a loader do not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import InputError, ShapeError, warn
from veridical.fidelity.correctness import accuracy, at_chance, check_labels, predicted_labels
from veridical.fidelity.removal import budget
from veridical.models.predictor import Side, take_side
from veridical.perturb.fills import Fill
from veridical.values.content_hash import hash_tensors
from veridical.values.input_checks import sample_digests, side_of, tensor_of
from veridical.values.task import Task

UNSEEN_GAP = 0.1
"""How far accuracy on the training rows may lie below that on the evaluated ones before we say so."""
READ_AT_ONCE = 1024
"""Rows read together in the one pass over all of them before training."""
READ_TWICE = 8
"""Rows read again, to notice a source that changes them at random."""
Columns = tuple[str, str | None]


class Streamed:
    """Inputs of a dataset, indexed by a tensor of row numbers like a tensor of them all."""

    def __init__(self, source: Any, columns: Columns | None, side: Sequence[str], like: Tensor) -> None:
        data = torch.utils.data
        loaded = isinstance(source, data.DataLoader)
        self._dataset: Any = source.dataset if loaded else source
        # a dataset that is only walked through may inherit a __getitem__ that raises
        if isinstance(self._dataset, data.IterableDataset) or not hasattr(self._dataset, "__len__"):
            raise InputError(
                f"{type(self._dataset).__name__} does not give its number of rows and rows by their number; "
                "rows are split, ordered and masked by number: give a dataset with __len__ and __getitem__, "
                "which is read row by row all the same (of a Hugging Face stream: Dataset.from_generator)"
            )
        every = (data.SequentialSampler, data.RandomSampler)
        if loaded and (type(source.sampler) not in every or getattr(source.sampler, "replacement", False)):
            raise InputError(
                f"the loader draws rows by a {type(source.sampler).__name__}, and rows are drawn by number "
                "here: give the dataset itself, or a torch.utils.data.Subset of it"
            )
        if loaded and source.collate_fn is not data.default_collate:
            raise InputError(
                "the loader has a collate_fn: give a dataset whose rows are what it makes of them"
            )
        self._columns, self._side, self._like = columns, side, like
        first = torch.arange(min(READ_TWICE, len(self)))
        if len(self) and not torch.equal(self[first], self[first]):
            raise InputError(
                "a training row differs when it is read again: an artefact is addressed by its rows; give a "
                "dataset without random changes (augmentation)"
            )

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.batch(index)[0]

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Inputs, labels and side inputs of the rows of these numbers."""
        many = getattr(self._dataset, "__getitems__", None)
        items = many(index.tolist()) if many is not None else [self._dataset[i] for i in index.tolist()]
        place, label = self._places(items[0])
        inputs = _stack([row if place is None else row[place] for row in items])
        if inputs.shape[1:] != self._like.shape[1:]:
            raise ShapeError(
                f"training rows have shape {tuple(inputs.shape[1:])}, the task's inputs "
                f"{tuple(self._like.shape[1:])}"
            )
        labels = None if label is None else _stack([row[label] for row in items]).to(self.device)
        side = {name: _stack([row[name] for row in items]).to(self.device) for name in self._side}
        return inputs.to(self._like), labels, side

    def _places(self, row: Any) -> tuple[Any, Any]:
        """Where a row has its inputs and its label: mappings by their columns, pairs by their place."""
        if not isinstance(row, Mapping):
            if self._side:
                columns = ", ".join(self._side)
                raise InputError(
                    f"the task has side inputs {columns}: rows must be mappings with these columns"
                )
            pair = isinstance(row, tuple | list)
            return (0 if pair else None), (1 if pair and len(row) > 1 else None)
        there = ", ".join(map(str, row))
        if self._columns is None:
            raise InputError(
                "rows of this dataset are mappings; give columns=(inputs, label), label None without any, "
                f"among {there}"
            )
        for name in (*self._columns, *self._side):
            if name is not None and name not in row:
                raise InputError(f"the dataset has no column '{name}'; it has {there}")
        return self._columns

    @property
    def device(self) -> torch.device:
        return self._like.device


def is_dataset(source: Any) -> bool:
    """Whether rows are to be read from it one by one rather than taken as they lie."""
    if isinstance(source, Tensor | np.ndarray | str | bytes | list | tuple | Mapping):
        return False
    return isinstance(source, torch.utils.data.DataLoader) or (
        hasattr(source, "__getitem__") and not hasattr(source, "iloc")
    )


def _stack(values: Sequence[Any]) -> Tensor:
    found = [value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value)) for value in values]
    shapes = {tuple(value.shape) for value in found}
    if len(shapes) > 1:
        raise ShapeError(f"training rows differ in shape, {sorted(shapes)[:3]}; pad them to one")
    return torch.stack(found)


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
    """One number per row (rows,), by which an artefact knows later whether it has met a row."""
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
    if bool(task.side) and not bool(side) and not isinstance(inputs, Streamed):
        raise InputError("the task has side inputs; give those of the training rows with train_side=...")
    present = None if train_space is not None else present_features(task)
    answers, digests, valid, read, sides = [], [], [], [], []
    content = hashlib.blake2b(digest_size=16)
    for index in torch.arange(len(inputs), device=task.device).split(READ_AT_ONCE):
        x, label, own = inputs.batch(index) if isinstance(inputs, Streamed) else (inputs[index], None, {})
        read += [] if label is None else [label]
        sides += [own] if own else []
        beside = own or (take_side(side, index) if side else side)
        answers.append(predicted_labels(task.uncounted(partial(task.predictor.outputs, x, beside)), task))
        digests.append(sample_digests(x).cpu())
        content.update(hash_tensors({"rows": x}).digest())
        valid += [] if present is None else [present(x)]
    labels = torch.cat(read) if read else labels
    side = {name: torch.cat([own[name] for own in sides]) for name in sides[0]} if sides else side
    predicted = torch.cat(answers)
    targets, origin = predicted, "predicted"
    if labels is not None:
        targets, origin = check_labels(labels, task, "training labels"), "given"
        _check_seen(task, predicted, targets)
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
        predicted,
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
    here = accuracy(predicted_labels(task.outputs, task), check_labels(task.labels, task), task)
    there = accuracy(answers, targets, task)
    if there < here - UNSEEN_GAP:
        warn(
            f"the model is right on {there:.1%} of the training rows and on {here:.1%} of the evaluated "
            "ones: it may never have seen these training rows"
        )


def present_features(task: Task) -> Callable[[Tensor], Tensor] | None:
    """What tells which features other rows have (rows, V), by the task's padding; None where nothing tells.

    Tokens: ids that stand only where no feature is are pads. Steps of a series: those from which on every
    value is the one with which the task's series are padded.
    """
    space = task.space
    if space.valid is None:
        return None
    outside = task.inputs[space.expand(~space.valid).expand(task.inputs.shape)].unique()
    if space.kind == "token" and not task.inputs.is_floating_point():
        inside = task.inputs[space.valid].unique()
        pads = outside[~torch.isin(outside, inside)]
        return lambda rows: ~torch.isin(rows, pads)
    if space.kind != "step" or len(outside) != 1:
        return None
    steps = replace(space, valid=None)
    return lambda rows: steps.pool((rows != outside).double()).flip(-1).cumsum(-1).flip(-1) > 0
