"""What is computed once for a task and kept on it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any


class TaskCache:
    """Keeps what was computed: for itself alone, for its subsets, or for all with the same reference rows.

    Two threads may compute the same thing at once; then both have the same value.
    """

    _cache: dict[str, Any]
    _calibrations: dict[str, Any]
    _train_facts: dict[str, Any]

    def cached(self, name: str, make: Callable[[], Any]) -> Any:
        """Compute something once for this task."""
        return _once(self._cache, name, make)

    def latest(self, name: str, about: Hashable, make: Callable[[], Any]) -> Any:
        """Like `cached` of what `about` decides, for large things: only the last of that name is kept."""
        known = self._cache.get(name)
        if known is None or known[0] != about:
            known = self._cache[name] = about, make()
        return known[1]

    def calibrated(self, name: str, make: Callable[[], Any]) -> Any:
        """Estimate something from the whole set once; subsets made afterwards inherit it and so agree."""
        return _once(self._calibrations, name, make)

    def from_train(self, name: str, make: Callable[[], Any]) -> Any:
        """Estimate something from the reference rows once; every task with the same rows shares it."""
        return _once(self._train_facts, name, make)

    def known(self, name: str) -> Any:
        """What is kept under a name, or None."""
        return self._cache.get(name)

    def keep(self, name: str, value: Any) -> None:
        """Keep a value under a name; None forgets it."""
        if value is None:
            self._cache.pop(name, None)
        else:
            self._cache[name] = value


def _once(kept: dict[str, Any], name: str, make: Callable[[], Any]) -> Any:
    if name not in kept:
        kept[name] = make()
    return kept[name]
