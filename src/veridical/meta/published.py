"""What the published program does otherwise: in IPT it keeps the explanation of the unperturbed input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from veridical.core.key import Key
from veridical.explainers import Explainer
from veridical.meta.dependence import FACTS
from veridical.values.explanation import Explanation
from veridical.values.task import Task


@dataclass(frozen=True)
class Recalled(Explainer):
    """An explainer that answers with a finished explanation where it is asked about one world as it stands.

    Elsewhere (a neighbouring input, other weights, another class) it explains as ever.
    """

    inner: Explainer
    """The explainer that answers elsewhere."""
    kept: Explanation
    """The finished explanation."""
    world: Task
    """The task that is answered with it."""
    name: ClassVar[str] = "recalled"

    def __getattribute__(self, name: str) -> Any:
        # to a metric it is the explainer it stands for, in all that is asked before it explains
        if name in FACTS:
            return getattr(object.__getattribute__(self, "inner"), name)
        return object.__getattribute__(self, name)

    def __call__(self, task: Task, key: Key = Key(0)) -> Explanation:  # noqa: B008 (frozen)
        same = (
            task.predictor.weights is self.world.predictor.weights
            and task.predictor.wraps == self.world.predictor.wraps
            and torch.equal(task.ids, self.world.ids)
            and torch.equal(task.targets, self.world.targets)
            and torch.equal(task.inputs, self.world.inputs)
        )
        return self.kept if same else self.inner(task, key)
