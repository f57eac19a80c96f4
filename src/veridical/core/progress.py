"""A progress bar where work takes long; silent when nobody is looking."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
SHOW_AFTER = 2.0
"""Seconds after which a single call shows that it works."""
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
def status(what: str, rows: Callable[[], int]) -> Iterator[None]:
    """Show what runs, its rows so far and its seconds, once that takes longer than `SHOW_AFTER`.

    Only at a terminal, and only where no other bar is shown; the line goes when the work is done.
    """
    if not sys.stderr.isatty() or not _shown.acquire(blocking=False):
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    begin, before = time.monotonic(), rows()

    def line() -> Text:
        return Text(f"{what}: {rows() - before:,} rows, {time.monotonic() - begin:.0f} s")

    console = Console(stderr=True)
    live = Live(
        get_renderable=line, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    )
    timer = threading.Timer(SHOW_AFTER, live.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        live.stop()
        _shown.release()
