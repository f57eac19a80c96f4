"""Controls: maps that know nothing of the model and that no honest metric should prefer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical import rng
from veridical.explainers.base import Explainer, register
from veridical.rng import Key
from veridical.task import Task


@register
@dataclass(frozen=True)
class Random(Explainer):
    """Uniform noise on [0, 1), drawn anew for every sample and key (RAN in the GEF paper)."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "control: uniform noise"
    paper: ClassVar[str] = "control"
    stochastic: ClassVar[bool] = True
    control: ClassVar[bool] = True

    def attribute(self, task: Task, key: Key) -> Tensor:
        return rng.uniform(key, task.ids, 0, task.space.n_features)
