"""Work that several scores share: kept while one task is scored again and again, and then let go."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from veridical.values.task import Task


T = TypeVar("T")


class _Shared(local):
    """Each thread shares with itself: else what a score costs would depend on who else is at work."""

    def __init__(self) -> None:
        self.work: dict[Task, dict[Hashable, object]] = {}
        """What is shared at the moment, by task."""


SHARED = _Shared()


@contextmanager
def sharing(task: Task) -> Iterator[None]:
    """While this is open, what `shared` names is made once for this very task (not for tasks made of it).

    Rows that serve several scores are counted where they were first evaluated.
    """
    if task in SHARED.work:
        yield
        return
    SHARED.work[task] = {}
    try:
        yield
    finally:
        del SHARED.work[task]


def shared(task: Task, name: Hashable, make: Callable[[], T]) -> T:
    """What `make` gives, or gave before to the same name while the task's work is shared."""
    kept = SHARED.work.get(task)
    if kept is None:
        return make()
    if name not in kept:
        kept[name] = make()
    found: T = kept[name]  # type: ignore[assignment]
    return found
