"""A progress bar where work takes long; silent when nobody is looking."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def track(things: Sequence[T], what: str, show: bool | None = None) -> Iterator[T]:
    """Iterate with a bar on standard error; by default only at a terminal."""
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        yield from things
        return
    from rich.console import Console
    from rich.progress import track as rich_track

    yield from rich_track(things, description=what, console=Console(stderr=True), transient=True)
