"""What is computed once for a task and kept on it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any


class Keeping:
    """Keeps what was computed: for itself alone, for its subsets, or for all with the same reference rows."""

    _cache: dict[str, Any]
    _calibrations: dict[str, Any]
    _train_facts: dict[str, Any]

    def cached(self, name: str, make: Callable[[], Any]) -> Any:
        """Compute a calibration once for this task."""
        cache = self._cache
        if name not in cache:
            cache[name] = make()
        return cache[name]

    def latest(self, name: str, about: Hashable, make: Callable[[], Any]) -> Any:
        """Like `cached` of what `about` decides, for large things: only the last of that name is kept."""
        cache = self._cache
        if name not in cache or cache[name][0] != about:
            cache[name] = about, make()
        return cache[name][1]

    def calibrated(self, name: str, make: Callable[[], Any]) -> Any:
        """Estimate something from the whole set once; subsets made afterwards inherit it and so agree."""
        calibrations = self._calibrations
        if name not in calibrations:
            calibrations[name] = make()
        return calibrations[name]

    def from_train(self, name: str, make: Callable[[], Any]) -> Any:
        """Estimate something from the reference rows once; every task with the same rows shares it."""
        facts = self._train_facts
        if name not in facts:
            facts[name] = make()
        return facts[name]
