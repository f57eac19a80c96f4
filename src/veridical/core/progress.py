"""A progress bar where work takes long; silent when nobody is looking."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 2.0
"""Seconds of work after which a waiting reader is told how it stands."""
_shown = threading.Lock()
"""Held by the one bar or line that is on the screen."""


def track(
    things: Sequence[T], what: str, show: bool | None = None, said: Callable[[], str] | None = None
) -> Iterator[T]:
    """Iterate with a bar on standard error; by default only at a terminal.

    `said` tells how things stand (a loss, say) and is asked before and after every step.
    """
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        yield from things
        return
    from rich.console import Console
    from rich.progress import Progress

    def text() -> str:
        return what if said is None else f"{what}, {said()}"

    first = _shown.acquire(blocking=False)
    try:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(text(), total=len(things))
            for thing in things:
                yield thing
                bar.update(task, advance=1, description=text())
    finally:
        if first:
            _shown.release()


@contextmanager
def waiting(what: str, rows: Callable[[], int], show: bool | None = None) -> Iterator[None]:
    """Say on standard error how long one call has worked and what it asked, once it takes over two seconds.

    Only at a terminal, and only where no other bar is shown.
    """
    if not (sys.stderr.isatty() if show is None else show) or not _shown.acquire(blocking=False):
        yield
        return
    done, begin, before = threading.Event(), time.monotonic(), rows()

    def tell() -> None:
        shown = ""
        while not done.wait(PATIENCE if not shown else 0.5):
            shown = f"{what}: {time.monotonic() - begin:.0f} s, {rows() - before:,} rows asked"
            print(f"\r{shown}\x1b[K", end="", file=sys.stderr, flush=True)
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
        _shown.release()
