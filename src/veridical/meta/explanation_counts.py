"""Counting explanations that metrics make themselves, apart from those that all metrics share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from veridical.explainers import Explainer
from veridical.random.keyed import Key
from veridical.values.explanation import Explanation
from veridical.values.task import Task


@dataclass
class Tally:
    """Explanations made: calls, and samples explained in them."""

    calls: int = 0
    samples: int = 0

    def add(self, task: Task) -> None:
        """One more explanation of a whole task."""
        self.calls += 1
        self.samples += len(task)


def counted(explainer: Explainer, tally: Tally) -> Explainer:
    """The same explainer, each of whose calls is counted.

    It is of a subclass of the explainer's own class, so that whatever a metric asks of it stays true, and
    variants made of it with `dataclasses.replace` count as well.
    """
    kind: Any = type(explainer)

    def call(self: Any, task: Task, key: Key = Key(0)) -> Explanation:  # noqa: B008 (frozen)
        tally.add(task)
        explanation: Explanation = kind.__call__(self, task, key)
        return explanation

    made: Explainer = object.__new__(type(kind.__name__, (kind,), {"__call__": call}))
    made.__dict__.update(explainer.__dict__)
    return made
