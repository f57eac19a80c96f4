"""Whether a pass is being recorded, and what must not happen then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from torch import Tensor

Answer: TypeAlias = tuple[Tensor, ...]
"""What comes of a pass."""

_RECORDING: ContextVar[list[Tensor] | None] = ContextVar("what a recorded pass reads", default=None)


class UnrecordableError(RuntimeError):
    """A pass does what cannot be played again."""


def is_recording() -> bool:
    """Whether what happens now belongs to a pass that is being recorded."""
    return _RECORDING.get() is not None


@contextmanager
def recording() -> Iterator[list[Tensor]]:
    """While this is open, a pass is being recorded; what it reads of what many share comes in the list."""
    read: list[Tensor] = []
    token = _RECORDING.set(read)
    try:
        yield read
    finally:
        _RECORDING.reset(token)


def keep_out_of_recordings(what: str) -> None:
    """Refuse what would outlive the pass that is being recorded: its tensors are the recording's own."""
    if is_recording():
        raise UnrecordableError(f"a pass that is being recorded cannot leave {what} behind")


def shared(tensor: Tensor) -> Tensor:
    """A tensor that its owner may give back at any time: a recording, which reads it there, keeps it."""
    read = _RECORDING.get()
    if read is not None:
        read.append(tensor)
    return tensor
