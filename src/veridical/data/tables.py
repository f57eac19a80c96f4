"""Tables, labels and texts: which column is what, classes as numbers of outputs, and tasks from them."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.core.key import Key
from veridical.data.files import ARRAY_SUFFIXES, Examples, read_examples, read_table
from veridical.data.training import split
from veridical.errors import InputError
from veridical.models.dataframes import FrameCodec, as_pandas
from veridical.models.estimators import class_names, estimator_response, one_target
from veridical.values.space import Space
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


def class_numbers(values: Any, classes: Sequence[str] | None = None) -> Tensor:
    """The output each label stands for.

    Numbers count outputs. Names are looked up in `classes`, the names of the outputs in their order,
    without regard to case; names that are all digits count outputs too. Without `classes` names are
    numbered in alphabetic order.

    >>> class_numbers(["pos", "neg"], ["NEG", "POS"])
    tensor([1, 0])
    """
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return torch.tensor(array.astype(np.int64))
    if array.dtype.kind == "f":
        whole = classes is not None and bool((array == array.round()).all())
        return torch.tensor(array.astype(np.int64) if whole else array)
    names = [str(value) for value in array.reshape(-1).tolist()]
    order = _order(names, classes)
    return torch.tensor([order[name] for name in names])


def _order(names: Sequence[str], classes: Sequence[str] | None) -> dict[str, int]:
    """The number of every name."""
    distinct = sorted(set(names))
    for known in (classes, None if classes is None else [name.casefold() for name in classes]):
        if known is None or len(set(known)) < len(known):
            continue
        place = {name: number for number, name in enumerate(known)}
        found = {name: place.get(name, place.get(name.casefold(), -1)) for name in distinct}
        if min(found.values()) >= 0:
            return found
    if all(name.isascii() and name.isdigit() for name in distinct):
        return {name: int(name) for name in distinct}
    if classes is None:
        return {name: number for number, name in enumerate(distinct)}
    unknown = [name for name in distinct if name.casefold() not in {c.casefold() for c in classes}]
    raise InputError(f"labels {_few(unknown)} are not among the model's classes {_few(classes)}")


def _few(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return f"[{shown}{f', ... ({len(names)} in all)' if len(names) > most else ''}]"


def check_labels(labels: Tensor | None, outputs: int, head: str, named: int | None = None) -> None:
    """Refuse class numbers the model has no output for; `named` classes were numbered by name alone."""
    if labels is None or head in ("regression", "multilabel"):
        return
    if named is not None and named != outputs:
        raise InputError(
            f"the labels name {named} classes and the model has {outputs} outputs, so which is which is not "
            f"clear; write them as the numbers 0 to {outputs - 1} of the outputs, or give classes=[...]"
        )
    if labels.is_floating_point():
        raise InputError(
            f"labels have fractions and the model tells {outputs} classes apart; write them as the numbers 0 "
            f"to {outputs - 1} of the outputs, or say head='regression'"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= outputs:
        raise InputError(
            f"labels run from {low} to {high}, and the model's outputs are numbered 0 to {outputs - 1}"
        )


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of the data and of the reference rows, as numbers of a model's outputs."""

    values: Tensor | None = None
    train: Tensor | None = None
    named: int | None = None
    """How many classes were numbered by their names alone, in alphabetic order."""

    @property
    def fractions(self) -> bool:
        """Whether these are no classes but quantities."""
        return self.values is not None and self.values.is_floating_point()

    def checked(self, task: Task) -> Task:
        """The task, if its model has an output for every label."""
        for labels in (self.values, self.train):
            check_labels(labels, task.n_outputs, task.head, self.named)
        return task


def numbered(
    labels: Any, train: Any, values: Sequence[Any] | None = None, names: Sequence[Any] | None = None
) -> Labels:
    """Labels of the data and of the reference rows as numbers of outputs, both numbered alike.

    `values` are an estimator's own classes and `names` those of any other model, in the order of its outputs.
    """
    if values is not None:
        return Labels(_places(labels, values), _places(train, values))
    named = None
    numbers = labels is None or isinstance(labels, Tensor) or np.asarray(labels).dtype.kind in "iubf"
    if names is None and not numbers:
        names = sorted({*map(str, labels), *map(str, () if train is None else train)})
        named = None if all(name.isdigit() for name in names) else len(names)
    known = None if names is None else [str(name) for name in names]
    both = [None if given is None else class_numbers(given, known) for given in (labels, train)]
    whole = [
        own.long()
        if own is not None and own.is_floating_point() and bool((own == own.round()).all())
        else own
        for own in both
    ]
    return Labels(whole[0], whole[1], named)


def _places(labels: Any, classes: Sequence[Any]) -> Tensor | None:
    if labels is None:
        return None
    given = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    known = [value.item() if hasattr(value, "item") else value for value in classes]
    unknown = sorted({value for value in given if value not in known}, key=repr)
    if unknown:
        raise InputError(f"labels {unknown[:12]} are not among the model's classes {known[:12]}")
    return torch.tensor([known.index(value) for value in given])


# --- tasks ----------------------------------------------------------------------------------------------


def from_arrays(model: Any, inputs: Any, **settings: Any) -> Task:
    """A task from arrays, or from a .npy, .npz or .safetensors file of them.

    Nothing pickled is ever read.

    Parameters
    ----------
    model
        Anything that `Task` takes.
    inputs : array or path
        Rows, or a file. One with several arrays names them inputs, labels, targets, masks, train and
        train_labels; what the caller gives takes precedence.
    **settings
        Go to `Task`.

    Returns
    -------
    Task

    Raises
    ------
    FormatError
        Where a file is damaged, needs unpickling, or holds arrays of other names.
    """
    if not isinstance(inputs, str | Path):
        return Task(model, inputs, **settings)
    found = read_examples(inputs)
    if found.kind != "arrays":
        raise InputError(f"arrays are read from {', '.join(ARRAY_SUFFIXES)}; got {Path(inputs).name}")
    arrays = dict(found.arrays)
    train_labels = arrays.pop("train_labels", None)
    if "train" in arrays and train_labels is not None:
        arrays["train"] = (arrays["train"], train_labels)
    return Task(model, found.rows, **{"name": found.name, **arrays, **settings})


def from_table(
    model: Any,
    table: str | Path | pd.DataFrame,
    *,
    label: str | None = None,
    train: str | Path | pd.DataFrame | float | None = None,
    train_labels: Tensor | None = None,
    one_hot: bool | None = None,
    **settings: Any,
) -> Task:
    """A task from a table: a csv, tsv, parquet or jsonl file, or a data frame.

    A scikit-learn pipeline or a function of data frames is explained in its raw columns. A torch module (or
    `one_hot=True`) gets numbers only: a column of categories becomes one 0/1 column per level, in alphabetic
    order and in its place, and those columns together are one feature.

    Parameters
    ----------
    model
        An estimator, a pipeline, a function of data frames, or a torch module.
    table : path or data frame
        The samples.
    label : str, optional
        The column to predict; it is taken out of the inputs.
    train : path, data frame or float, optional
        Reference rows: another table of the same columns, with or without the label, or a share of this table
        that is split off.
    train_labels : Tensor, optional
        Labels of a table of reference rows that has no column of them.
    one_hot : bool, optional
        Whether a model that is no torch module gets numbers only.
    **settings
        Go to `Task`.

    Returns
    -------
    Task

    Raises
    ------
    InputError
        Where a column is not there, or has missing values that the model cannot read.
    """
    frame = _frame(table)
    if isinstance(settings.get("output"), int):
        model = one_target(model, settings.pop("output"))
    if isinstance(table, str | Path):
        settings.setdefault("name", Path(table).stem)
    if isinstance(train, float):
        if not 0 < train < 1:
            raise InputError(f"train as a share lies between 0 and 1, got {train}")
        held, kept = split(len(frame), 1 - train, Key(0) / "from_table")
        settings.setdefault("ids", kept)
        reference: pd.DataFrame | None = frame.iloc[held.tolist()].reset_index(drop=True)
        frame = frame.iloc[kept.tolist()].reset_index(drop=True)
    else:
        reference = None if train is None else _frame(train)
    if label is not None:
        label_column(frame, label)
        found = numbered(label_values(frame, label), label_values(reference, label), class_names(model))
        settings.setdefault("labels", found.values)
        train_labels = train_labels if found.train is None else found.train
        frame = frame.drop(columns=[label])
        reference = None if reference is None else reference.drop(columns=[label], errors="ignore")
    module = isinstance(model, nn.Module)
    if one_hot is False and module:
        raise InputError("a torch module cannot read categories; leave out one_hot=False")
    if module or one_hot:
        codec = FrameCodec.of(frame, reference)
        settings.setdefault("space", _groups(codec))
        inputs: Any = _one_hot(codec, frame)
        rows: Any = None if reference is None else _one_hot(codec, reference)
    else:
        inputs, rows = frame, reference
    if rows is not None:
        settings.setdefault("train", rows if train_labels is None else (rows, train_labels))
    return Task(model, inputs, **settings)


def _frame(table: str | Path | pd.DataFrame) -> pd.DataFrame:
    return read_table(table) if isinstance(table, str | Path) else as_pandas(table)


def label_values(frame: pd.DataFrame | None, label: Any) -> Any:
    """The values of a label column; None where a table of reference rows has no such column."""
    if frame is None or label not in frame.columns:
        return None
    if frame[label].isna().any():
        raise InputError(f"the label column '{label}' has missing values; leave those rows out")
    return frame[label].to_numpy()


def _groups(codec: FrameCodec) -> Space:
    """One feature per column of the table; categories lie over several columns of the tensor."""
    names = [str(name) for name in codec.columns]
    if not any(codec.categories):
        return Space.columns(len(names), names)
    widths = torch.tensor([1 if levels is None else len(levels) for levels in codec.categories])
    return Space.column_groups(torch.arange(len(names)).repeat_interleave(widths), names)


def _one_hot(codec: FrameCodec, frame: pd.DataFrame) -> Tensor:
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


MOST_WORDS = 256
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


def split_words(texts: Sequence[str]) -> list[list[str]]:
    """The words between spaces of each text, the first 256 of them."""
    return [text.split()[:MOST_WORDS] for text in texts]


def word_rows(texts: list[list[str]], number: dict[str, int], longest: int) -> Tensor:
    """Texts as rows of word numbers, 0 behind the last word."""
    rows = torch.zeros(len(texts), longest, dtype=torch.int64)
    for row, words in enumerate(texts):
        kept = words[:longest]
        rows[row, : len(kept)] = torch.tensor([number[word] for word in kept], dtype=torch.int64)
    return rows
