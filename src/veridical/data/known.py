"""What a task with a known answer carries: the task, its true explanation, and who must win on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.data.data import Data, assemble, pick
from veridical.perturb.fills import Zero
from veridical.values.task import Task

EVALUATED = 200
TRAINING = 400


@dataclass(frozen=True, eq=False)
class KnownAnswer:
    """A task whose explanation is known: `truth` (N, V) for the task's targets, and why it is the truth.

    `task.masks` holds the features that matter at all. `winners` are explainers (by registered name) that
    give the truth up to a positive factor per sample, or whose strongest features are those that matter;
    `losers` are explainers that cannot. A metric worth its name ranks every winner above every loser.
    """

    task: Task
    truth: Tensor
    winners: tuple[str, ...]
    losers: tuple[str, ...]
    why: str

    def __post_init__(self) -> None:
        expected = (len(self.task), self.task.space.n_features)
        if tuple(self.truth.shape) != expected:
            raise ValueError(f"truth has shape {tuple(self.truth.shape)}, expected {expected}")

    def __repr__(self) -> str:
        return f"KnownAnswer on {self.task.name}: {', '.join(self.winners)} win; {self.why}"


def halves() -> tuple[Tensor, Tensor]:
    """The fixed split of synthetic rows: the first for training, the rest evaluated."""
    return torch.arange(TRAINING), torch.arange(TRAINING, TRAINING + EVALUATED)


def row_ids() -> Tensor:
    """The ids of all synthetic rows."""
    return torch.arange(TRAINING + EVALUATED)


def task_of(
    model: nn.Module, data: Data, name: str, samples: int | None, seed: int, **extra: Any
) -> tuple[Task, Tensor]:
    """The task on synthetic rows (zero fill unless said otherwise), and which rows it evaluates."""
    extra.setdefault("fill", Zero())
    task = assemble(model.eval(), data, f"known/{name}", samples, seed, **extra)
    return task, pick(data, f"known/{name}", samples, seed)


def signed(task: Task, towards_one: Tensor) -> Tensor:
    """Turn an attribution of class 1 against class 0 into one of each sample's target."""
    return torch.where(task.targets[:, None] == 1, towards_one, -towards_one)


def draw_normal(purpose: str, size: int) -> Tensor:
    """Standard normal rows of a synthetic data set."""
    return keyed.normal(Key(0) / "known" / purpose, row_ids(), 0, size)


def draw_below(purpose: str, size: int, below: int) -> Tensor:
    """Uniform integers for every row of a synthetic data set."""
    return keyed.integers(Key(0) / "known" / purpose, row_ids(), 0, size, below)


def draw_uniform(purpose: str, size: int) -> Tensor:
    """Uniform numbers in [0, 1) for every row of a synthetic data set."""
    return keyed.uniform(Key(0) / "known" / purpose, row_ids(), 0, size)


def draw_order(purpose: str, size: int) -> Tensor:
    """A permutation for every row of a synthetic data set."""
    return keyed.permutation(Key(0) / "known" / purpose, row_ids(), 0, size)
