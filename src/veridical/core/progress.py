"""A progress bar where work takes long; silent when nobody is looking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


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

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text(), total=len(things))
        for thing in things:
            yield thing
            bar.update(task, advance=1, description=text())
