"""Looks that wait for nobody: on a GPU a mistake is found when a result is read, not while it is made.

To look at a number on a GPU is to wait until all that was asked of it before is done, and in the meantime it
is asked nothing new. So a score is made without looking, and whatever could be wrong with it is looked at
when somebody wants to see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

Look = Callable[[], None]
"""Raises if something is wrong."""

AT_ONCE = {"cpu"}
"""Kinds of device at which to look is to wait for nothing."""


def can_look(device: torch.device) -> bool:
    """Whether to look at a number there is to wait for nothing."""
    return device.type in AT_ONCE


_COLLECTED: ContextVar[list[Look] | None] = ContextVar("looks of a score", default=None)


@contextmanager
def collecting() -> Iterator[list[Look]]:
    """While this is open, `look_later` adds to the list that comes with it; whoever opens it looks."""
    looks: list[Look] = []
    token = _COLLECTED.set(looks)
    try:
        yield looks
    finally:
        _COLLECTED.reset(token)


def look_later(device: torch.device, look: Look) -> None:
    """Look when the result that is being made is read; at once on a CPU, or where nobody collects."""
    looks = _COLLECTED.get()
    if looks is None or can_look(device):
        look()
    else:
        looks.append(look)
