"""Rows asked of a model: what is counted, and what a result cost."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Cost:
    """Rows the model was asked, forward and backward."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forward + other.forward, self.backward + other.backward)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.forward - other.forward, self.backward - other.backward)

    def __str__(self) -> str:
        return f"{self.forward} rows forward, {self.backward} backward"


@dataclass
class Meter:
    """Counts rows through a model; shared by a task and everything derived from it."""

    forward: int = 0
    backward: int = 0
    halvings: int = 0

    @property
    def cost(self) -> Cost:
        return Cost(self.forward, self.backward)

    def count_backward(self, gradient: Tensor) -> None:
        """Count the rows of a gradient that comes back through a model's outputs."""
        self.backward += gradient.shape[0]

    def add(self, cost: Cost) -> None:
        """Count rows that were asked without a call of the model."""
        self.forward += cost.forward
        self.backward += cost.backward

    def reset(self, cost: Cost) -> None:
        """Forget what was counted since the meter stood there."""
        self.forward, self.backward = cost.forward, cost.backward
