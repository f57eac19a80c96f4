"""Tasks from arrays and tables, in memory or on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from veridical.core.key import Key
from veridical.data.data import split
from veridical.data.files import read_arrays, read_table
from veridical.errors import FormatError, InputError
from veridical.models.dataframes import FrameCodec, as_pandas
from veridical.models.estimators import class_names, one_target
from veridical.values.space import Space
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

ARRAY_NAMES = ("inputs", "labels", "targets", "masks", "train", "train_labels")


def from_arrays(model: Any, inputs: Any, **settings: Any) -> Task:
    """A task from arrays, or from a .npy, .npz or .safetensors file of them.

    A file with several arrays names them inputs, labels, targets, masks, train and train_labels; what the
    caller gives takes precedence. Nothing pickled is ever read. Further settings go to `Task`.
    """
    if isinstance(inputs, str | Path):
        path = Path(inputs)
        arrays = read_arrays(path)
        unknown = sorted(set(arrays) - set(ARRAY_NAMES))
        if "inputs" not in arrays or unknown:
            raise FormatError(
                f"{path.name} holds {sorted(arrays)}; expected 'inputs' and any of "
                f"{', '.join(ARRAY_NAMES[1:])}"
            )
        inputs = arrays.pop("inputs")
        if "train_labels" in arrays:
            if "train" not in arrays:
                raise FormatError(f"{path.name} holds train_labels without train")
            arrays["train"] = (arrays["train"], arrays.pop("train_labels"))
        settings = {"name": path.stem, **arrays, **settings}
    return Task(model, inputs, **settings)


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

    `label` names the column to predict; it is taken out of the inputs. `train` is another table of the
    same columns, with or without that one, or a share of this one that is split off as reference rows.
    `train_labels` are the labels of a table of reference rows that has no column of them.
    A scikit-learn pipeline or a function of data frames is explained in its raw columns. A torch module
    (or `one_hot=True`) gets numbers only: a column of categories becomes one 0/1 column per level, in
    alphabetic order and in its place, and those columns together are one feature. Further settings go to
    `Task`.
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
    labels = None
    if label is not None:
        levels = _levels(model, label, frame, reference)
        frame, labels = _take_label(frame, label, levels)
        if reference is not None and label in reference.columns:
            reference, train_labels = _take_label(reference, label, levels)
    if labels is not None:
        settings.setdefault("labels", labels)
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


def _levels(model: Any, label: str, *frames: pd.DataFrame | None) -> list[Any] | None:
    """The classes in the order of the model's outputs; None for labels that are numbers already."""
    import pandas as pd

    first = frames[0]
    if first is not None and label not in first.columns:
        raise InputError(f"there is no column '{label}'; the table has {list(first.columns)}")
    if class_names(model) is not None:
        return list(class_names(model))
    column = pd.concat([frame[label] for frame in frames if frame is not None and label in frame.columns])
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return None
    return sorted(column.unique().tolist(), key=repr)


def _take_label(frame: pd.DataFrame, label: str, levels: list[Any] | None) -> tuple[pd.DataFrame, Tensor]:
    column = frame[label]
    if column.isna().any():
        raise InputError(f"the label column '{label}' has missing values; leave those rows out")
    rest = frame.drop(columns=[label])
    if levels is None:
        return rest, torch.as_tensor(column.to_numpy().copy())
    unknown = sorted(set(column) - set(levels), key=repr)
    if unknown:
        raise InputError(f"labels {unknown} are not among the model's classes {levels}")
    return rest, torch.tensor([levels.index(value) for value in column])


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
