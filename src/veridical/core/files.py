"""Files: written whole or not at all, verified by a checksum, bounded in size. Never pickle.

Tensors are kept in safetensors, the rest as JSON in its header. Any format that keeps a text as it stands can
carry a checksum: a file is made with a blank in its header, the SHA-256 of all its bytes is taken, and put
where the blank is; verifying does the same backwards. It finds accidents (a flipped bit, a cut or mixed-up
file); it is no signature.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from veridical.errors import FormatError, InputError, StorageError, VeridicalError

FORMAT_VERSION = 3
PART = ".part"
_MARK = "sha256:"
NO_CHECKSUM = _MARK + "0" * 64
_CHECKSUM = re.compile(_MARK.encode() + rb"[0-9a-f]{64}")
MIB = 2**20

LIMITS: dict[str, tuple[int, str]] = {
    "file_mib": (4096, "MiB of one input file"),
    "array_mib": (4096, "MiB of all arrays or weights of one file, unfolded"),
    "columns": (100_000, "columns of one table"),
    "image_pixels": (50_000_000, "pixels of one image, as it is stored and as it is scaled"),
    "yaml_kib": (1024, "KiB of a study file"),
    "yaml_nodes": (100_000, "values of a study file, aliases written out"),
    "yaml_depth": (32, "levels of nesting of a study file"),
    "grid_points": (100_000, "points of the grids of a study's axis"),
    "cells": (10_000_000, "cells of a study, shards aside"),
}
"""How much a file may take of this machine, by name: the usual value, and what it is of. The environment
variable `VERIDICAL_MAX_` and the name in capitals sets another one."""


def write_file(path: str | Path, content: bytes | str, private: bool = True) -> Path:
    """Put a file in place at once: killed before, there is none; killed after, it is whole.

    The file beside it that is written first is new and has a name nobody can guess: no link is followed.
    `private` files are readable by their owner alone; others by whom the user's umask lets.
    """
    path = Path(path)
    if not path.name or path.is_dir():
        raise StorageError(f"{path} is a folder; give the name of a file in it")
    part = path.with_name(secrets.token_hex(12) + PART)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        raise StorageError.of("written", path, error) from error
    return path


def read_file(path: str | Path) -> bytes:
    """The bytes of a file, or a sentence that says why there are none."""
    path = Path(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FormatError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise StorageError.of("read", path, error) from error


def checksum(content: bytes) -> str:
    """The SHA-256 of bytes, as text."""
    return hashlib.sha256(content).hexdigest()


def with_checksum(content: bytes) -> bytes:
    """The content with its checksum where its one `NO_CHECKSUM` is."""
    at = _place(content, "the content to be written")
    return content[:at] + _checksum_of(content, at).encode() + content[at + len(NO_CHECKSUM) :]


def verify_checksum(content: bytes, source: str) -> str:
    """The checksum of content; FormatError where it is not the checksum of these bytes."""
    at = _place(content, source)
    checksum = _checksum_of(content, at)
    if content[at : at + len(NO_CHECKSUM)] != checksum.encode():
        raise FormatError(f"{source} is damaged: its content is not what its checksum says")
    return checksum.removeprefix(_MARK)


def check_header(found: Mapping[str, Any], source: str, **expected: Any) -> None:
    """Refuse a whole file in the wrong place: what its header says must be what was asked for."""
    for name, value in expected.items():
        if value is not None and found.get(name) != value:
            raise FormatError(
                f"{source} is another file than its place says: its {name} is {found.get(name)!r}, "
                f"expected {value!r}"
            )


def new_header(kind: str, version: int, content_hash: str = "", rows: int | None = None) -> dict[str, Any]:
    """What every file says of itself."""
    return {
        "format": version,
        "kind": kind,
        "content_hash": content_hash,
        "rows": rows,
        "checksum": NO_CHECKSUM,
    }


def read_header(text: str | bytes, source: str, version: int) -> dict[str, Any]:
    """The header, unless a newer version wrote it or it is none."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{source} is not JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("format"), int):
        raise FormatError(f"{source} does not say which format it has")
    if found["format"] > version:
        raise FormatError(f"{source} has format {found['format']}, this version reads up to {version}")
    return found


@contextmanager
def understood(source: str) -> Iterator[None]:
    """Around making something of a whole file: content that is none of ours is refused in a sentence."""
    try:
        yield
    except VeridicalError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise FormatError(f"{source} holds something else than it should ({why:.99})") from error


def pack_json(data: Mapping[str, Any], kind: str, version: int, content_hash: str = "") -> bytes:
    """Plain data as JSON with a checksum."""
    return with_checksum(
        json.dumps({**new_header(kind, version, content_hash), "data": data}, indent=1).encode()
    )


def unpack_json(content: bytes, source: str, kind: str, version: int, content_hash: str | None = None) -> Any:
    """What `pack_json` packed."""
    found = read_header(content, source, version)
    verify_checksum(content, source)
    check_header(found, source, kind=kind, content_hash=content_hash)
    if "data" not in found:
        raise FormatError(f"{source} holds no data")
    return found["data"]


def save_tensors(
    path: str | Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    header: Mapping[str, Any],
    content_hash: str = "",
) -> Path:
    """Write atomically, with a checksum; `content_hash` says what the content was made from."""
    return write_file(path, pack_tensors(kind, tensors, header, content_hash))


def load_tensors(
    path: str | Path, kind: str, content_hash: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote, or say what the file is instead."""
    return unpack_tensors(read_file(path), kind, str(path), content_hash)


def pack_tensors(
    kind: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any], content_hash: str = ""
) -> bytes:
    """Tensors and header as bytes with a checksum; the rows are those of `ids`, where there are any."""
    from safetensors.torch import save

    rows = len(tensors["ids"]) if "ids" in tensors else header.get("rows")
    about = {**header, **new_header(kind, FORMAT_VERSION, content_hash, rows)}
    # copies, since the format refuses tensors that share memory
    copies = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    return with_checksum(save(copies, {"veridical": json.dumps(about, allow_nan=True)}))


def unpack_tensors(
    content: bytes, kind: str, source: str, content_hash: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `pack_tensors` packed."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    meta = _metadata(content, source)
    if "veridical" not in meta:
        raise FormatError(f"{source} was not written by veridical (its header is missing)")
    header = read_header(meta["veridical"], source, FORMAT_VERSION)
    verify_checksum(content, source)
    if header.get("kind") != kind:
        raise FormatError(f"{source} holds a {header.get('kind')}, expected a {kind}")
    check_header(header, source, content_hash=content_hash)
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


def limit(name: str) -> int:
    """The limit of this name: the usual one, or the environment's."""
    variable = f"VERIDICAL_MAX_{name.upper()}"
    text = os.environ.get(variable)
    if text is None:
        return LIMITS[name][0]
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InputError(f"{variable} is a whole number from 0, got '{text}'")
    return int(text)


def check_limit(name: str, amount: float, source: str) -> None:
    """Raise where `amount` is beyond the limit, and say how to move it."""
    most = limit(name)
    if amount > most:
        raise InputError(
            f"{source} asks for {amount:,.0f} {LIMITS[name][1]}; at most {most:,} are taken. If you trust "
            f"it, set VERIDICAL_MAX_{name.upper()}"
        )


def check_file_size(path: Path) -> None:
    """Refuse a file that is too large, as it is or, for an archive (.npz, .pt), unfolded."""
    check_limit("file_mib", path.stat().st_size / MIB, path.name)
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            unfolded = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # whoever reads it says what is wrong with it
    check_limit("array_mib", unfolded / MIB, path.name)


def _place(content: bytes, source: str) -> int:
    found = list(_CHECKSUM.finditer(content))
    if len(found) != 1:
        what = "carries no checksum" if not found else "carries more than one checksum"
        raise FormatError(f"{source} {what}: it is damaged, foreign, or of an earlier version")
    return found[0].start()


def _checksum_of(content: bytes, at: int) -> str:
    view = memoryview(content)
    made = hashlib.sha256(view[:at])
    made.update(NO_CHECKSUM.encode())
    made.update(view[at + len(NO_CHECKSUM) :])
    return _MARK + made.hexdigest()
