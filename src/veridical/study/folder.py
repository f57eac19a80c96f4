"""The folder of a study: a local path or any fsspec URL, where a reader finds a whole file or none."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from veridical.core import files
from veridical.core.files import PART
from veridical.errors import StorageError

CELLS, EXPLANATIONS, PREPARED, FAILURES, TIMINGS = "cells", "explanations", "prepared", "failures", "timings"
PLANS, LEASES = "plans", "leases"


class Folder:
    """Files by name, such as 'cells/0a1b.parquet', each written at once."""

    def __init__(self, place: str | Path) -> None:
        text = str(place)
        self.local: Path | None = None
        self._fs: Any = None
        if "://" in text and not text.startswith("file://"):
            import fsspec  # type: ignore[import-untyped]

            self._fs, self._root = fsspec.core.url_to_fs(text)
            self.url = text.rstrip("/")
        else:
            self.local = Path(text.removeprefix("file://")).absolute()
            self.url = str(self.local)

    def read(self, name: str) -> bytes:
        """The bytes of a file; FileNotFoundError where there is none."""
        try:
            if self.local is not None:
                return (self.local / name).read_bytes()
            content: bytes = self._fs.cat_file(self._at(name))
            return content
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError.of("read", f"{self.url}/{name}", error) from error

    def write(self, name: str, content: bytes) -> None:
        """Put a file in place at once: killed before, there is none; killed after, it is whole."""
        if self.local is not None:
            files.write_file(self.local / name, content)
            return
        part = self._at(f"{name}.{uuid.uuid4().hex}{PART}")
        try:
            self._fs.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(part, content)
            self._fs.mv(part, self._at(name))
        except OSError as error:
            raise StorageError.of("written", f"{self.url}/{name}", error) from error

    def rewrite(self, name: str, content: bytes) -> None:
        """Write a file unless it holds this already."""
        if not self.exists(name) or self.read(name) != content:
            self.write(name, content)

    def append(self, name: str, line: str) -> None:
        """Add a line to a local file; elsewhere files cannot grow, and the caller writes them whole."""
        assert self.local is not None
        path = self.local / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # readable by its owner alone, as everything here
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise StorageError.of("written", path, error) from error

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return bool(
            (self.local / name).is_file() if self.local is not None else self._fs.isfile(self._at(name))
        )

    def names(self, kind: str) -> set[str]:
        """The names of the whole files in one of the sub-folders, without their endings."""
        return {name.partition(".")[0] for name in self.files(kind)}

    def files(self, kind: str) -> list[str]:
        """The whole files in one of the sub-folders."""
        if self.local is not None:
            where = self.local / kind
            found = [entry.name for entry in os.scandir(where) if entry.is_file()] if where.is_dir() else []
        elif self._fs.isdir(self._at(kind)):
            self._fs.invalidate_cache()
            found = [str(path).rpartition("/")[2] for path in self._fs.ls(self._at(kind), detail=False)]
        else:
            found = []
        return sorted(name for name in found if not name.endswith(PART))

    def delete(self, name: str) -> None:
        """Remove a file if it is there."""
        with suppress(FileNotFoundError):
            if self.local is not None:
                (self.local / name).unlink()
            else:
                self._fs.rm_file(self._at(name))

    @contextmanager
    def at_hand(self, name: str) -> Iterator[Path]:
        """A local path with the content of a file, for readers that want one."""
        if self.local is not None:
            yield self.local / name
            return
        with tempfile.TemporaryDirectory() as where:
            path = Path(where) / name.rpartition("/")[2]
            path.write_bytes(self.read(name))
            yield path

    def sweep(self, before: float) -> None:
        """Remove what killed writers left behind; for a run alone in the folder until `before`."""
        if self.local is None:
            return
        for kind in ("", CELLS, EXPLANATIONS, PREPARED, FAILURES, PLANS):
            for path in (self.local / kind).glob(f"*{PART}"):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"
