"""Data from a file or folder, before it is known what the model makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.data.files import ARRAY_SUFFIXES, TABLE_SUFFIXES, read_arrays, read_table
from veridical.data.images import image_files
from veridical.errors import FormatError, InputError
from veridical.models.dataframes import as_pandas, is_frame

MANY_ROWS = 2**20
ALIASES = {
    "inputs": ("inputs", "x", "x_test", "test"),
    "labels": ("labels", "y", "y_test", "test_labels"),
    "train": ("train", "x_train", "train_inputs"),
    "train_labels": ("train_labels", "y_train"),
    "masks": ("masks",),
    "targets": ("targets",),
}
"""What each array of a file is for, by the names it may have (in any case)."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows as they were found: arrays by name, a data frame, or the images of a folder."""

    kind: Literal["arrays", "table", "images"]
    rows: Any
    count: int
    name: str
    arrays: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    classes: list[str] | None = None
    """The subfolder each image lies in, where every one lies in some."""


def read_examples(data: Any, labels: str | None = None, reference: bool = False) -> Examples:
    """Read data of any accepted kind; `labels` may name an array of a file to be the true classes.

    In a file of reference rows that array may be missing, and arrays called train are the rows themselves.
    """
    data = as_pandas(data)
    if is_frame(data):
        return Examples("table", data, len(data), "table")
    if not isinstance(data, str | Path):
        return _arrays({"inputs": data}, "data")
    path = Path(data)
    if path.is_dir():
        return _images(path)
    suffix = path.suffix.lower()
    if suffix not in (*ARRAY_SUFFIXES, *TABLE_SUFFIXES):
        exists = "" if path.exists() else ", and there is no such file or folder"
        raise InputError(
            f"'{data}' ends in '{path.suffix}'{exists}; data is a folder of images or a file that ends in "
            f"{', '.join((*ARRAY_SUFFIXES, *TABLE_SUFFIXES))}"
        )
    if suffix in ARRAY_SUFFIXES:
        arrays = read_arrays(path)
        if reference:
            labels = labels if labels in arrays else None
            arrays = _train_first(arrays)
        return _arrays(arrays, path.name, labels, path.stem)
    frame = read_table(path)
    return Examples("table", frame, len(frame), path.stem)


def some_rows(count: int, samples: int | None, seed: int) -> Tensor:
    """Row numbers of `samples` rows drawn without replacement, in ascending order; all of them for None."""
    if samples is None or samples >= count:
        return torch.arange(count)
    key, one = Key(seed) / "own data", torch.tensor([0])
    if count > MANY_ROWS and samples < count // 2:
        # of very many rows a permutation would be larger than the rows: draw until enough differ
        drawn = keyed.integers(key, one, 0, 2 * samples + 64, count)[0].tolist()
        kept = list(dict.fromkeys(drawn))[:samples]
        return torch.tensor(kept).sort().values
    return keyed.permutation(key, one, 0, count)[0][:samples].sort().values


def _images(folder: Path) -> Examples:
    files, classes, found = image_files(folder)
    names = None if classes is None or found is None else [classes[i] for i in found.tolist()]
    return Examples("images", files, len(files), folder.name, folder=folder, classes=names)


def _arrays(found: Mapping[str, Any], file: str, labels: str | None = None, name: str = "arrays") -> Examples:
    found = dict(found)
    arrays: dict[str, Any] = {}
    if labels is not None:
        if labels not in found:
            raise InputError(f"there is no array '{labels}'; {file} has {', '.join(sorted(found))}")
        arrays["labels"] = found.pop(labels)
    if len(found) == 1 and "inputs" not in _purposes(found):
        found = {"inputs": next(iter(found.values()))}
    for purpose, names in _purposes(found).items():
        if purpose in arrays:
            continue
        if len(names) > 1:
            raise FormatError(f"{file} holds {' and '.join(names)}, which all may be the {purpose}")
        arrays[purpose] = found[names[0]]
    known = {alias for names in ALIASES.values() for alias in names}
    unknown = sorted(name for name in found if name.lower() not in known)
    if "inputs" not in arrays or unknown:
        problem = f"{', '.join(unknown)} cannot be placed" if unknown else "none of them is the inputs"
        wanted = "; ".join(f"{purpose}: {' or '.join(names)}" for purpose, names in ALIASES.items())
        raise FormatError(f"{file} holds {', '.join(sorted(found))}; {problem}. Names are {wanted}")
    rows = arrays.pop("inputs")
    if not getattr(rows, "ndim", 1) or not len(rows):
        raise FormatError(f"{file} has no rows: inputs have shape {tuple(getattr(rows, 'shape', ()))}")
    return Examples("arrays", rows, len(rows), name, arrays)


def _train_first(found: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a file of reference rows, where they are called train, under the names of data."""
    purposes = _purposes(found)
    if "train" not in purposes:
        return dict(found)
    renamed = {"train": "inputs", "train_labels": "labels"}
    return {renamed[old]: found[name] for old in renamed for name in purposes.get(old, ())}


def _purposes(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """The arrays that may serve each purpose."""
    by_purpose = {
        purpose: sorted(name for name in found if name.lower() in names) for purpose, names in ALIASES.items()
    }
    return {purpose: names for purpose, names in by_purpose.items() if names}
