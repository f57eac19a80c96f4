"""What a user might name as code in a study file: tasks, explainers and metrics, good ones and bad ones."""

import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

import veridical as vd
from veridical.core import key as keyed
from veridical.metrics.base import Metric, Outcome

FEATURES = 6


def model() -> nn.Module:
    made = nn.Linear(FEATURES, 3)
    with torch.no_grad():
        made.weight.copy_(torch.arange(18.0).reshape(3, FEATURES) % 5 - 2)
        made.bias.zero_()
    return made


def rows(start: int, stop: int) -> Tensor:
    """Rows that follow from their number alone, so that a shard needs no other."""
    return keyed.normal(vd.core.Key(0) / "rows", torch.arange(start, stop), 0, FEATURES)


def whole(samples: int = 10, shift: float = 0.0) -> vd.Task:
    return vd.Task(model(), rows(0, samples) + shift, train=rows(1000, 1064), ids=range(samples))


def of_function(samples: int = 4) -> vd.Task:
    return vd.Task(lambda x: torch.stack([x.sum(1), x[:, 0]], 1), rows(0, samples))


def not_a_task() -> int:
    return 3


def flipped(model: nn.Module, inputs: Tensor, targets: Tensor, scale: float = -1.0) -> Tensor:
    return scale * inputs


@dataclass(frozen=True)
class Total(Metric):
    """The sum of the map."""

    name: ClassVar[str] = "total"
    factor: float = 1.0

    def evaluate(self, task, explanation, context):  # type: ignore[no-untyped-def]
        values = self.factor * explanation.values.double().sum(-1)
        return Outcome(values, {"negative": values < 0})


@dataclass(frozen=True)
class Breaks(Metric):
    """Raises, always."""

    name: ClassVar[str] = "breaks"

    def evaluate(self, task, explanation, context):  # type: ignore[no-untyped-def]
        raise ValueError("it had to be")


@dataclass(frozen=True)
class Slow(Metric):
    """Takes its time, so that a run can be killed in the middle of a cell."""

    name: ClassVar[str] = "slow"
    seconds: float = 0.05

    def evaluate(self, task, explanation, context):  # type: ignore[no-untyped-def]
        time.sleep(self.seconds)
        draws = keyed.uniform(context.key, task.ids, 0, 1, torch.float64)[:, 0]
        return Outcome(explanation.values.double().sum(-1) + draws, {"late": draws > 0.5})
