"""Files that verify themselves: written whole or not at all, and sealed by a digest of every byte.

Any format that keeps a text as it stands can be sealed. A file is made with a blank in its header, the
BLAKE2b digest of all its bytes is taken, and the digest put where the blank is. Checking does the same
backwards. The digest finds accidents (a flipped bit, a cut or mixed-up file); it is no signature, and whoever
may write into a folder can seal a file of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from veridical.errors import FormatError, StorageError

PART = ".part"
_MARK = "blake2b:"
BLANK = _MARK + "0" * 64
_SEAL = re.compile(_MARK.encode() + rb"[0-9a-f]{64}")


def seal(content: bytes) -> bytes:
    """The content with its digest where its one `BLANK` is."""
    at = _place(content, "the content to be sealed")
    return content[:at] + _digest(content, at).encode() + content[at + len(BLANK) :]


def check(content: bytes, source: str) -> str:
    """The digest of sealed content; FormatError where it is not the digest of these bytes."""
    at = _place(content, source)
    digest = _digest(content, at)
    if content[at : at + len(BLANK)] != digest.encode():
        raise FormatError(f"{source} is damaged: its content is not what its digest says")
    return digest.removeprefix(_MARK)


def agree(found: Mapping[str, Any], source: str, **expected: Any) -> None:
    """Refuse a whole file in the wrong place: what its header says must be what was asked for."""
    for name, value in expected.items():
        if value is not None and found.get(name) != value:
            raise FormatError(
                f"{source} is another file than its place says: its {name} is {found.get(name)!r}, "
                f"expected {value!r}"
            )


def header(kind: str, version: int, address: str = "", rows: int | None = None) -> dict[str, Any]:
    """What every sealed file says of itself."""
    return {"format": version, "kind": kind, "address": address, "rows": rows, "seal": BLANK}


def readable(text: str | bytes, source: str, version: int) -> dict[str, Any]:
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


def pack_json(data: Mapping[str, Any], kind: str, version: int, address: str = "") -> bytes:
    """Plain data as sealed JSON."""
    return seal(json.dumps({**header(kind, version, address), "data": data}, indent=1).encode())


def unpack_json(content: bytes, source: str, kind: str, version: int, address: str | None = None) -> Any:
    """What `pack_json` packed."""
    found = readable(content, source, version)
    check(content, source)
    agree(found, source, kind=kind, address=address)
    return found["data"]


def put(path: str | Path, content: bytes | str, private: bool = True) -> Path:
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
    except OSError as error:
        raise StorageError.of("written", path, error) from error
    return path


def get(path: str | Path) -> bytes:
    """The bytes of a file, or a sentence that says why there are none."""
    path = Path(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FormatError(f"there is no file {path}") from None
    except OSError as error:
        raise StorageError.of("read", path, error) from error


def _place(content: bytes, source: str) -> int:
    found = list(_SEAL.finditer(content))
    if len(found) != 1:
        what = "carries no digest" if not found else "carries more than one digest"
        raise FormatError(f"{source} {what}: it is damaged, foreign, or of an earlier version")
    return found[0].start()


def _digest(content: bytes, at: int) -> str:
    view = memoryview(content)
    made = hashlib.blake2b(view[:at], digest_size=32)
    made.update(BLANK.encode())
    made.update(view[at + len(BLANK) :])
    return _MARK + made.hexdigest()
