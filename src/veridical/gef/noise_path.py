"""A path of noise levels, found or given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from veridical.errors import InputError

LOWEST = 1e-3
"""The first level of every path that was found."""


@dataclass(frozen=True)
class NoisePath:
    """Noise levels from nearly none to chance, and why the search ended there."""

    levels: tuple[float, ...]
    """The levels, rising."""
    sigma_max: float
    """The last of them."""
    reason: str
    """Why the search ended there."""
    rule: str
    """The rule of the search, or "given"."""
    chance: float
    """The agreement that means nothing."""
    searched: tuple[float, ...] = ()
    """The levels that were tried."""
    agreement: tuple[float, ...] = ()
    """The mean agreement with the unperturbed predictions there (a regression: R^2 of the outputs)."""
    fitted: tuple[float, ...] = ()
    """Its fit that only falls."""
    interval: tuple[float, float] = (float("nan"), float("nan"))
    """95% for `sigma_max`, over the draws."""
    rows: int = 0
    """Rows asked by the search."""
    draws: tuple[int, ...] = ()
    """Noisy models at each level tried."""

    @classmethod
    def given(cls, levels: Sequence[float]) -> NoisePath:
        """A path of the caller's own."""
        own = tuple(levels)
        rising = all(low < high for low, high in pairwise(own))
        if not own or not all(math.isfinite(level) and level > 0 for level in own) or not rising:
            raise InputError(f"a noise path is positive and rising, got {own}")
        return cls(own, own[-1], "given", "given", float("nan"))

    def to_json(self) -> dict[str, Any]:
        """The path as plain data, for the provenance of the scores that rest on it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        if self.rule == "given":
            return f"a given path up to {self.sigma_max:g}"
        low, high = self.interval
        spread = "" if low != low else f" [{low:g}, {high:g}]"
        return (
            f"{len(self.levels)} levels up to {self.sigma_max:.3g}{spread} ({self.reason}; "
            f"{self.rule} rule, chance {self.chance:.3g}, {self.rows} rows asked)"
        )


def even_levels(sigma_max: float, count: int) -> tuple[float, ...]:
    """`count` levels evenly spaced from 1e-3 to sigma_max; a single level is sigma_max itself."""
    if count < 1:
        raise InputError(f"a path needs at least one level, got {count}")
    if count == 1:
        return (sigma_max,)
    return tuple(LOWEST + (sigma_max - LOWEST) * i / (count - 1) for i in range(count))
