"""How values are kept on disk: tensors in safetensors, the rest as JSON in its header. Never pickle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from veridical.errors import FormatError

FORMAT_VERSION = 1


def write(path: str | Path, kind: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Path:
    """Write atomically: a reader finds the whole file or none."""
    from safetensors.torch import save_file

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = {"veridical": json.dumps({"format": FORMAT_VERSION, "kind": kind, **header}, allow_nan=True)}
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        # copies, since the format refuses tensors that share memory
        copies = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        save_file(copies, part, meta)
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)
    return path


def read(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write` wrote, or say what the file is instead."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FormatError(f"there is no file {path}")
    try:
        with safe_open(str(path), framework="pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise FormatError(f"{path} is not a safetensors file: {error}") from error
    if "veridical" not in meta:
        raise FormatError(f"{path} was not written by veridical (its header is missing)")
    header: dict[str, Any] = json.loads(meta["veridical"])
    if header["format"] > FORMAT_VERSION:
        raise FormatError(f"{path} has format {header['format']}, this version reads up to {FORMAT_VERSION}")
    if header["kind"] != kind:
        raise FormatError(f"{path} holds a {header['kind']}, expected a {kind}")
    return tensors, header
