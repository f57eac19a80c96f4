"""Rows evaluated by a model: what is counted, and what a result cost."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cost:
    """Rows of the model that a result took.

    There are two quantities. `rows_alone` (and `backward`) is what the result evaluates by itself, the same
    whatever was evaluated before: it is what costs are compared by, and what equality of two costs means.
    `rows` is a count: what really entered the model's `forward` for this result in this call. It holds rows
    that fill up a chunk and the task's own outputs where they were not known, and is less where outputs were
    known already.

    >>> Cost(8, 8, rows=16) == Cost(8, 8, rows=8)
    True
    """

    forward: int = 0
    """Rows whose outputs it needs by itself."""
    backward: int = 0
    """Rows through which it needs gradients."""
    rows: int = field(default=0, compare=False)
    """Rows that really entered `forward` for this result in this call."""

    @property
    def rows_alone(self) -> int:
        """Rows that it evaluates by itself, whatever was evaluated before; the one that is compared."""
        return self.forward

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forward + other.forward, self.backward + other.backward, self.rows + other.rows)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.forward - other.forward, self.backward - other.backward, self.rows - other.rows)

    def __str__(self) -> str:
        return f"{self.forward} rows forward, {self.backward} backward"


@dataclass
class Tally:
    """What one thread has evaluated so far."""

    forward: int = 0
    backward: int = 0
    rows: int = 0
    """Rows that really entered `forward`."""
    halvings: int = 0
    """How often a chunk was halved because memory ran out."""


class Meter(threading.local):
    """Counts rows through a model; shared by a task and everything derived from it.

    Each thread counts its own rows, so that two scores computed at the same time do not count each other's.
    """

    def __init__(self) -> None:
        self.here = Tally()
        """What this thread has evaluated: made anew in every thread."""

    @property
    def cost(self) -> Cost:
        """What this thread has evaluated, as a cost; a difference of two is the cost of what lay between."""
        return Cost(self.here.forward, self.here.backward, self.here.rows)

    def add(self, cost: Cost) -> None:
        """Count rows that were evaluated without a call of the model."""
        self.here.forward += cost.forward
        self.here.backward += cost.backward
        self.here.rows += cost.rows

    def reset(self, cost: Cost) -> None:
        """Forget what this thread counted since the meter stood there."""
        self.here.forward, self.here.backward = cost.forward, cost.backward

    def __reduce__(self) -> tuple[Any, ...]:
        return (Meter, ())  # counts belong to a process
