"""Arrays and tables from files that hold data and nothing else; what cannot be read says why and where."""

from __future__ import annotations

import json
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from veridical.errors import FormatError, InputError, VeridicalError
from veridical.values.bounds import MIB, check_file, refuse_more

if TYPE_CHECKING:
    import pandas as pd

ARRAY_SUFFIXES = (".npy", ".npz", ".safetensors")
BROKEN = (
    *(ValueError, TypeError, OSError, EOFError, AttributeError, KeyError, IndexError, SyntaxError),
    *(MemoryError, OverflowError, RecursionError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)
"""What numpy and the formats below it raise on damaged bytes."""
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")


def existing_file(path: str | Path) -> Path:
    """The path of a file that is there and holds something."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.stat().st_size == 0:
        raise FormatError(f"{path.name} is empty")
    check_file(path)
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
        refuse_more("array_mib", unfolded / MIB, path.name)
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
