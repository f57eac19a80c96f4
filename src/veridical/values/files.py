"""How values are kept on disk: tensors in safetensors, the rest as JSON in its header. Never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from veridical.errors import FormatError
from veridical.values import sealed

FORMAT_VERSION = 2


def write(
    path: str | Path, kind: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any], address: str = ""
) -> Path:
    """Write atomically and sealed; `address` says what the content was made from."""
    return sealed.put(path, pack(kind, tensors, header, address))


def read(path: str | Path, kind: str, address: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write` wrote, or say what the file is instead."""
    return unpack(sealed.get(path), kind, str(path), address)


def pack(kind: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any], address: str = "") -> bytes:
    """Tensors and header as sealed bytes; the rows are those of `ids`, where there are any."""
    from safetensors.torch import save

    rows = len(tensors["ids"]) if "ids" in tensors else header.get("rows")
    about = {**header, **sealed.header(kind, FORMAT_VERSION, address, rows)}
    # copies, since the format refuses tensors that share memory
    copies = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    return sealed.seal(save(copies, {"veridical": json.dumps(about, allow_nan=True)}))


def unpack(
    content: bytes, kind: str, source: str, address: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `pack` packed."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    meta = _metadata(content, source)
    if "veridical" not in meta:
        raise FormatError(f"{source} was not written by veridical (its header is missing)")
    header = sealed.readable(meta["veridical"], source, FORMAT_VERSION)
    sealed.check(content, source)
    if header["kind"] != kind:
        raise FormatError(f"{source} holds a {header['kind']}, expected a {kind}")
    sealed.agree(header, source, address=address)
    try:
        return load(content), header
    except SafetensorError as error:
        raise FormatError(f"{source} is not a safetensors file: {error}") from error


def _metadata(content: bytes, source: str) -> dict[str, Any]:
    """The texts in the header of a safetensors file: eight bytes of length, then JSON."""
    try:
        found = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        meta: dict[str, Any] = found.get("__metadata__", {})
    except (ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise FormatError(f"{source} is not a safetensors file: {error}") from error
    return meta
