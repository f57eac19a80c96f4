"""The folder of jobs, where a reader finds a whole file or none."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from veridical.core import files
from veridical.core.files import PART
from veridical.errors import FormatError, InputError, StorageError

log = logging.getLogger("veridical")


def content_hash(content: Any) -> str:
    """A short digest of plain data: what a job is known by.

    Parameters
    ----------
    content
        Anything that goes to JSON; what does not is taken by its `repr`.

    Returns
    -------
    str
        32 hexadecimal digits.

    Examples
    --------
    >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(content, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Store:
    """Files by name, such as 'cells/0a1b.parquet', each written at once.

    Parameters
    ----------
    folder
        A path; a bucket of a cloud is mounted first.
    """

    def __init__(self, folder: str | Path) -> None:
        if "\0" in str(folder) or "://" in str(folder):
            raise InputError(f"a folder is a path of this machine, got {str(folder)!r}")
        self.folder = Path(folder).absolute()

    # --- bytes --------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        """The bytes of a file; FileNotFoundError where there is none."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError.of("read", self.folder / name, error) from error

    def write(self, name: str, content: bytes) -> None:
        """Put a file in place at once: killed before, there is none; killed after, it is whole."""
        files.write_file(self.folder / name, content)

    def append(self, name: str, lines: list[str]) -> None:
        """Add lines to a file."""
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # readable by its owner alone, as everything here
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            raise StorageError.of("written", path, error) from error

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.folder / name).is_file()

    def files(self, kind: str) -> list[str]:
        """The whole files in one of the sub-folders."""
        where = self.folder / kind
        found = [entry.name for entry in os.scandir(where) if entry.is_file()] if where.is_dir() else []
        return sorted(name for name in found if not name.endswith(PART))

    def hashes(self, kind: str) -> set[str]:
        """The names of the whole files in one of the sub-folders, without their endings."""
        return {name.partition(".")[0] for name in self.files(kind)}

    def delete(self, name: str) -> None:
        """Remove a file if it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def sweep(self, before: float) -> None:
        """Remove what killed writers left behind; for a run alone in the folder until `before`."""
        for path in self.folder.rglob(f"*{PART}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()

    # --- cells: results with a checksum, under their content hash -------------------------------------

    def write_json(self, name: str, data: Any, kind: str, version: int, hash: str = "") -> None:
        """Plain data with a checksum, unless the file holds just this already."""
        content = files.pack_json(data, kind, version, hash)
        if not self.exists(name) or self.read(name) != content:
            self.write(name, content)

    def read_json(self, name: str, kind: str, version: int, hash: str | None = None) -> Any:
        """What `write_json` wrote; FormatError where it is damaged or of another kind, version or job."""
        return files.unpack_json(self.read(name), f"{self.folder}/{name}", kind, version, hash)

    def write_cell(self, kind: str, hash: str, header: Any, tensors: dict[str, Tensor] | None = None) -> None:
        """Keep the result of a job: plain data, and tensors if there are any."""
        content = files.pack_tensors(kind, tensors or {}, {"data": header}, hash)
        self.write(f"{kind}/{hash}.safetensors", content)

    def read_cell(self, kind: str, hash: str) -> tuple[Any, dict[str, Tensor]] | None:
        """What `write_cell` kept; None where there is nothing, or (with a warning) it is damaged."""
        name = f"{kind}/{hash}.safetensors"
        try:
            tensors, header = files.unpack_tensors(self.read(name), kind, f"{self.folder}/{name}", hash)
        except FileNotFoundError:
            return None
        except FormatError as error:
            log.warning("%s; it is made again", error)
            return None
        return header["data"], tensors
