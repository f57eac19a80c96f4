"""Whether a pass is being recorded, and what must not happen then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from torch import Tensor

Answer: TypeAlias = tuple[Tensor, ...]
"""What comes of a pass."""

_RECORDING: ContextVar[bool] = ContextVar("a pass is being recorded", default=False)


class UnrecordableError(RuntimeError):
    """A pass does what cannot be played again."""


def is_recording() -> bool:
    """Whether what happens now belongs to a pass that is being recorded."""
    return _RECORDING.get()


@contextmanager
def recording() -> Iterator[None]:
    """While this is open, a pass is being recorded."""
    token = _RECORDING.set(True)
    try:
        yield
    finally:
        _RECORDING.reset(token)


def keep_out_of_recordings(what: str) -> None:
    """Refuse what would outlive the pass that is being recorded: its tensors are the recording's own."""
    if _RECORDING.get():
        raise UnrecordableError(f"a pass that is being recorded cannot leave {what} behind")
