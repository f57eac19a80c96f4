"""Tables, labels and texts: which column is what, classes as numbers of outputs, rows a model can take."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.core.space import Space
from veridical.data.files import Examples
from veridical.errors import InputError, warn
from veridical.models.dataframes import FrameCodec
from veridical.models.estimators import estimator_response
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd


# --- columns --------------------------------------------------------------------------------------------

LABEL_NAMES = ("label", "labels", "target", "class", "y")
TEXT_NAMES = ("text", "sentence", "review", "content", "document")


def label_column(frame: pd.DataFrame, wanted: str | None, features: Iterable[Any] | None = None) -> Any:
    """The column of the true classes: the one that is wanted, else the only one that can be it, else None.

    Parameters
    ----------
    frame : data frame
        The table.
    wanted : str, optional
        Its name.
    features : iterable, optional
        The columns the model takes: what is called label among them is no label, and a single column beyond
        them is one.

    Returns
    -------
    str or None

    Raises
    ------
    InputError
        Where there is no such column, or several may be it.
    """
    columns = list(frame.columns)
    if wanted is not None:
        if wanted not in columns:
            raise InputError(f"there is no column '{wanted}'; the table has {_listed(columns)}")
        return wanted
    taken = set() if features is None else set(features)
    spare = [name for name in columns if name not in taken]
    fitting = [name for name in spare if str(name).lower() in LABEL_NAMES]
    if not fitting and taken and len(spare) == 1:
        return spare[0]
    return _only(fitting, columns, "the true classes", "name it with --labels (labels=...)")


def text_column(frame: pd.DataFrame, label: Any = None, wanted: str | None = None) -> Any:
    """The column of the texts: the one that is wanted, else one by its usual name, else the only one of text.

    Parameters
    ----------
    frame : data frame
        The table.
    label : str, optional
        The column of the true classes, which is none of texts.
    wanted : str, optional
        Its name.

    Returns
    -------
    str

    Raises
    ------
    InputError
        Where there is no such column, or several may be it.
    """
    columns = [name for name in frame.columns if name != label]
    if wanted is not None:
        if wanted not in columns:
            raise InputError(f"there is no column '{wanted}' of texts; the table has {_listed(columns)}")
        return wanted
    texts = [name for name in columns if all(isinstance(value, str) for value in frame[name])]
    named = [name for name in texts if str(name).lower() in TEXT_NAMES]
    found = _only(named or texts, columns, "the texts", "name it with --text (text=...)")
    if found is None:
        raise InputError(f"no column holds texts; the table has {_listed(list(frame.columns))}")
    return found


def _only(fitting: list[Any], columns: list[Any], what: str, remedy: str) -> Any:
    if len(fitting) > 1:
        raise InputError(f"columns {_listed(fitting)} may each hold {what}, of {_listed(columns)}; {remedy}")
    return fitting[0] if fitting else None


def _listed(columns: list[Any], most: int = 30) -> str:
    shown = ", ".join(f"'{name}'" for name in columns[:most])
    return shown + (f" and {len(columns) - most} more" if len(columns) > most else "")


# --- labels ---------------------------------------------------------------------------------------------


def class_numbers(values: Any, names: Sequence[Any] | None = None) -> Tensor:
    """The output each label stands for.

    Numbers count outputs. Texts are looked up in `names`, the names of the outputs in their order, exactly
    or else without regard to case; those that are all digits count outputs too.

    >>> class_numbers(["pos", "neg"], ["NEG", "POS"])
    tensor([1, 0])
    """
    array = np.asarray(values)
    if _are_numbers(array):
        fractions = array.dtype.kind == "f" and bool((array != array.round()).any())
        return torch.tensor(array if fractions else array.astype(np.int64))
    written = [str(value) for value in array.reshape(-1).tolist()]
    names = [str(name) for name in names or ()]
    for fold in (str, str.casefold):
        place = {fold(name): number for number, name in enumerate(names)}
        if len(place) == len(names) and all(fold(name) in place for name in written):
            return torch.tensor([place[fold(name)] for name in written])
    if _are_digits(written):
        return torch.tensor([int(name) for name in written])
    known = {name.casefold() for name in names}
    unknown = sorted({name for name in written if name.casefold() not in known})
    raise InputError(f"labels {unknown[:12]} are not among the model's classes {names[:12]}")


def _are_numbers(values: Any) -> bool:
    return np.asarray(values).dtype.kind in "iubf"


def _are_digits(names: Iterable[Any]) -> bool:
    return all(str(name).isascii() and str(name).isdigit() for name in names)


def _places(labels: Any, classes: Any) -> Tensor:
    """Where each label stands among an estimator's own classes."""
    known = np.asarray(classes).tolist()
    given = np.asarray(labels, dtype=object).tolist()
    unknown = sorted({value for value in given if value not in known}, key=repr)
    if unknown:
        raise InputError(f"labels {unknown[:12]} are not among the model's classes {known[:12]}")
    return torch.tensor([known.index(value) for value in given])


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of the data and of the reference rows, as numbers of a model's outputs."""

    values: Tensor | None = None
    train: Tensor | None = None
    named: Sequence[str] | None = None
    """The classes that were numbered by their names alone, in alphabetic order."""

    @classmethod
    def of(cls, labels: Any, train: Any, classes: Any = None, names: Sequence[Any] | None = None) -> Labels:
        """Both numbered alike; by an estimator's own `classes`, or the `names` of another model's outputs."""
        given, named = [values for values in (labels, train) if values is not None], None
        if classes is None and names is None and not all(map(_are_numbers, given)):
            written = sorted({str(label) for values in given for label in values})
            named, names = (None, None) if _are_digits(written) else (written, written)

        def numbers(values: Any) -> Tensor | None:
            if values is None:
                return None
            return class_numbers(values, names) if classes is None else _places(values, classes)

        return cls(numbers(labels), numbers(train), named)

    @property
    def fractions(self) -> bool:
        """Whether these are no classes but quantities."""
        return self.values is not None and self.values.is_floating_point()

    def checked(self, task: Task) -> Task:
        """The task, if its model has an output for every label."""
        outputs = task.n_outputs
        for labels in (self.values, self.train):
            if labels is None or task.head in ("regression", "multilabel"):
                continue
            numbers = f"the numbers 0 to {outputs - 1} of the outputs"
            if self.named is not None and len(self.named) != outputs:
                raise InputError(
                    f"the labels name {len(self.named)} classes and the model has {outputs} outputs, so "
                    f"which is which is not clear; write them as {numbers}, or give classes=[...]"
                )
            if labels.is_floating_point():
                raise InputError(
                    f"labels have fractions and the model tells {outputs} classes apart; write them as "
                    f"{numbers}, or say head='regression'"
                )
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= outputs:
                raise InputError(f"labels run from {low} to {high}, and the model has {numbers}")
        if self.named is not None and task.head not in ("regression", "multilabel"):
            order = ", ".join(f"{number} is {name!r:.40}" for number, name in enumerate(self.named[:12]))
            warn(f"labels are names, taken in alphabetic order: output {order}; classes=[...] says another")
        return task


def label_values(frame: pd.DataFrame | None, label: Any) -> Any:
    """The values of a label column; None where a table of reference rows has no such column."""
    if frame is None or label not in frame.columns:
        return None
    if frame[label].isna().any():
        raise InputError(f"the label column '{label}' has missing values; leave those rows out")
    return frame[label].to_numpy()


# --- columns as numbers ---------------------------------------------------------------------------------


def column_space(codec: FrameCodec) -> Space:
    """One feature per column of the table; categories lie over several columns of the tensor."""
    names = [str(name) for name in codec.columns]
    if not any(codec.categories):
        return Space.columns(len(names), names)
    widths = torch.tensor([1 if levels is None else len(levels) for levels in codec.categories])
    return Space.column_groups(torch.arange(len(names)).repeat_interleave(widths), names)


def one_hot(codec: FrameCodec, frame: pd.DataFrame) -> Tensor:
    """Numbers as they are, a column of categories as one 0/1 column per level in its place."""
    missing = [str(name) for name in frame.columns if frame[name].isna().any()]
    if missing:
        raise InputError(
            f"columns {missing} have missing values, which a torch module cannot read; fill them in, or give "
            "a pipeline that does so or an estimator that takes them"
        )
    values = codec.encode(frame)
    parts = [
        column[:, None] if levels is None else nn.functional.one_hot(column.long(), len(levels)).double()
        for column, levels in zip(values.T, codec.categories, strict=True)
    ]
    return torch.cat(parts, 1).float()


# --- texts ----------------------------------------------------------------------------------------------

MAX_WORDS = 256
"""Words of a text that are explained; what comes after them is cut off."""


def is_text(rows: Any) -> bool:
    """Whether these rows are texts rather than numbers."""
    if isinstance(rows, np.ndarray):
        return rows.dtype.kind == "U"
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], str)


def texts_of(
    data: Examples, labels: str | None, text: str | None, reference: bool = False
) -> tuple[list[str], Any]:
    """The texts of a table or array, and their labels as they were written."""
    if data.kind == "arrays" and is_text(data.rows):
        return [str(value) for value in data.rows], data.arrays.get("labels")
    if data.kind != "table":
        raise InputError(
            "the model classifies texts; give a .jsonl, .csv or .parquet table with a column of them, not "
            + ("a folder of images" if data.kind == "images" else "arrays of numbers")
        )
    frame = data.rows
    if reference and labels is not None and labels not in frame.columns:
        labels = None
    label = label_column(frame, labels)
    column = text_column(frame, label, text)
    for name in (column, label):
        if name is not None and frame[name].isna().any():
            missing = [i for i, gone in enumerate(frame[name].isna()) if gone]
            raise InputError(f"column '{name}' is empty in {len(missing)} rows (first: {missing[:5]})")
    return [str(value) for value in frame[column]], None if label is None else frame[label].to_numpy()


# --- estimators that begin with a vectoriser ------------------------------------------------------------


def takes_texts(model: Any) -> bool:
    """Whether an estimator begins with one of scikit-learn's vectorisers of texts."""
    steps = getattr(model, "steps", None)
    return takes_texts(steps[0][1]) if steps else hasattr(model, "build_analyzer")


class WordFunction:
    """An estimator of texts as a function of rows of word numbers; number 0 is no word."""

    def __init__(self, estimator: Any, words: Sequence[str]) -> None:
        self.estimator = estimator
        self.words = ["", *words]
        self.respond, self.head = estimator_response(estimator)

    @property
    def content_digest(self) -> bytes:
        return hashlib.blake2b(pickle.dumps((self.estimator, self.words)), digest_size=16).digest()

    def __reduce__(self) -> tuple[Any, ...]:
        return WordFunction, (self.estimator, self.words[1:])

    def __call__(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        texts = [" ".join(self.words[i] for i in row if i) for row in np.asarray(rows).tolist()]
        return np.asarray(self.respond(texts))


def word_rows(texts: Sequence[Sequence[str]], number: dict[str, int], longest: int) -> Tensor:
    """Texts as rows of word numbers, 0 behind the last word."""
    return torch.tensor(
        [[*(number[w] for w in words[:longest]), *[0] * (longest - len(words))] for words in texts]
    )
