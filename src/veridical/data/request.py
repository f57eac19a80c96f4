"""What was asked of a task, with data and labels in the form any model needs them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veridical.data.files import Examples, read_arrays
from veridical.data.tables import check_labels, class_numbers
from veridical.errors import InputError, ShapeError, VeridicalWarning
from veridical.models.output_heads import PROBABILITIES
from veridical.models.predictor import Output, plain_output
from veridical.values.task import Task


@dataclass(frozen=True, eq=False)
class Request:
    """Data, reference data, the rows that were drawn, and what the user said about them."""

    data: Examples
    reference: Examples | None
    rows: Tensor
    labels: str | None = None
    text: str | None = None
    classes: Sequence[str] | None = None
    image: dict[str, Any] | None = None
    masks: Any = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reference is not None and self.reference.kind != self.data.kind:
            raise InputError(
                f"the data is {_named(self.data)} and the reference rows are {_named(self.reference)}; "
                "both must be of one kind"
            )

    def drawn(self, values: Any, what: str) -> Any:
        """The drawn rows of something that has one entry per row of the data."""
        if len(values) != self.data.count:
            raise ShapeError(f"{len(values)} {what} for {self.data.count} samples")
        if isinstance(values, list):
            return [values[i] for i in self.rows.tolist()]
        return values[self.rows if isinstance(values, Tensor) else self.rows.numpy()]

    def numbers(self, mine: Any, theirs: Any, classes: Sequence[Any] | None = None) -> Labels:
        """The labels of the data, and those of the reference rows, as numbers of outputs.

        `classes` are values of an estimator's own, in the order of its outputs.
        """
        if classes is not None:
            return Labels(_places(mine, classes), _places(theirs, classes))
        order, named = self.classes, None
        if order is None and _are_names(mine):
            # both sets are numbered alike, by the names of either
            order = sorted({*map(str, mine), *map(str, theirs if theirs is not None else ())})
            if not all(name.isdigit() for name in order):
                named = len(order)
        known = None if order is None else [str(name) for name in order]
        both = [None if values is None else _whole(class_numbers(values, known)) for values in (mine, theirs)]
        return Labels(both[0], both[1], named)

    def object_masks(self) -> Any:
        """Masks given as an array or a file of one, of the drawn rows; None if there are none."""
        found = self.masks if self.masks is not None else self.data.arrays.get("masks")
        if isinstance(found, str | Path):
            arrays = read_arrays(found)
            if "masks" not in arrays and len(arrays) > 1:
                raise InputError(f"{found} holds {', '.join(sorted(arrays))}; which of them is 'masks'?")
            found = arrays["masks"] if "masks" in arrays else next(iter(arrays.values()))
        return None if found is None else self.drawn(found, "masks")


@dataclass(frozen=True, eq=False)
class Labels:
    """Numbers of the true classes, of the data and of the reference rows."""

    mine: Tensor | None = None
    theirs: Tensor | None = None
    named: int | None = None
    """How many classes were numbered by their names alone, in alphabetic order."""

    @property
    def fractions(self) -> bool:
        """Whether these are no classes but quantities."""
        return self.mine is not None and self.mine.is_floating_point()

    def checked(self, task: Task) -> Task:
        """The task, if its model has an output for every label."""
        for labels in (self.mine, self.theirs):
            check_labels(labels, task.n_outputs, task.head, self.named)
        return task


def is_text(rows: Any) -> bool:
    """Whether these rows are texts rather than numbers."""
    if isinstance(rows, np.ndarray):
        return rows.dtype.kind == "U"
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], str)


def _named(data: Examples) -> str:
    return {"arrays": "arrays", "table": "a table", "images": "a folder of images"}[data.kind]


def _are_names(values: Any) -> bool:
    if values is None or isinstance(values, Tensor):
        return False
    return np.asarray(values).dtype.kind not in "iubf"


def _whole(labels: Tensor) -> Tensor:
    """Whole numbers that were written as 1.0 are whole numbers."""
    if labels.is_floating_point() and bool((labels == labels.round()).all()):
        return labels.long()
    return labels


def _places(values: Any, classes: Sequence[Any]) -> Tensor | None:
    if values is None:
        return None
    given = values.tolist() if hasattr(values, "tolist") else list(values)
    known = [value.item() if hasattr(value, "item") else value for value in classes]
    unknown = sorted({value for value in given if value not in known}, key=repr)
    if unknown:
        raise InputError(f"labels {unknown[:12]} are not among the model's classes {known[:12]}")
    return torch.tensor([known.index(value) for value in given])


# --- models that answer probabilities -------------------------------------------------------------------

SMALLEST = 1e-12
CLOSE = 1e-3


def log_probabilities(answer: object) -> Tensor:
    """The logarithm of a model's probabilities: their softmax is what the model said."""
    return plain_output(answer).clamp(min=SMALLEST).log()


def log_odds(answer: object) -> Tensor:
    """The logit of a single probability."""
    return torch.logit(plain_output(answer), eps=1e-7)


def on_logit_scale(make: Callable[..., Task]) -> Task:
    """The task `make()` gives, made again with `output=` if its model answers probabilities.

    A task reads outputs as logits. Probabilities read so would be squeezed by a second softmax, and every
    response with them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", PROBABILITIES, VeridicalWarning)
        task = make()
    output = probability_output(task)
    if output is None:
        return task
    warnings.warn(
        "the model answers probabilities; they are read on the scale of logits (as their logarithms), so "
        "that responses are those probabilities and not a second softmax of them",
        VeridicalWarning,
        stacklevel=3,
    )
    return make(output=output)


def probability_output(task: Task) -> Output | None:
    """The output function a model of probabilities needs; None for a model of logits."""
    outputs = task.outputs
    if task.head == "multiclass":
        sums = outputs.sum(1)
        each = bool((outputs >= -CLOSE).all()) and bool((sums - 1).abs().max() < CLOSE)
        return log_probabilities if each else None
    if task.head == "binary":
        single = outputs[:, 1]
        # logits of many samples are neither all positive nor all below one
        between = bool(((single >= 0) & (single <= 1)).all()) and len(task) >= 8
        return log_odds if between else None
    return None
