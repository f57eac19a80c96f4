"""Facts of a value that never changes, each computed once and kept with its owner."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


def fact(make: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Decorate a function of a frozen owner, such as a task, and hashable settings: each is computed once.

    The value lies with the owner and goes with it. Nothing makes it stale, as its owner never changes; what
    is derived from the owner (`task.with_weights(w)`, `task[:5]`) begins without. Two threads may compute the
    same fact at once; then both have the same value.
    """
    return _kept(make, "_facts")


def train_fact(make: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """The same for what follows from a task's reference rows alone: all tasks with these rows share it."""
    return _kept(make, "_train_facts")


def _kept(make: Callable[Concatenate[T, P], R], where: str) -> Callable[Concatenate[T, P], R]:
    @wraps(make)
    def find(owner: T, /, *settings: P.args, **named: P.kwargs) -> R:
        facts = vars(owner)[where]
        name = (find, *settings, *named.items())
        if name not in facts:
            facts[name] = make(owner, *settings, **named)
        found: R = facts[name]
        return found

    return find
