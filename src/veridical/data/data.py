"""Rows with a fixed split, and the task on the held-out part of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.models.predictor import Side, take_side
from veridical.values.space import Space
from veridical.values.task import Task


@dataclass(frozen=True, eq=False)
class Data:
    """Rows, labels and their fixed split; a row's number is its id."""

    rows: Tensor
    labels: Tensor
    train: Tensor
    test: Tensor
    side: Side = ()
    names: tuple[str, ...] | None = None
    masks: Tensor | None = None

    @property
    def training(self) -> tuple[Tensor, Tensor]:
        """The rows and labels a model may learn from."""
        return self.rows[self.train], self.labels[self.train]


def split(rows: int, test_share: float, key: Key) -> tuple[Tensor, Tensor]:
    """Row numbers of a fixed training and test part, each in ascending order."""
    order = keyed.permutation(key / "split", torch.tensor([0]), 0, rows)[0]
    held = round(test_share * rows)
    return order[held:].sort().values, order[:held].sort().values


def pick(data: Data, name: str, samples: int | None, seed: int) -> Tensor:
    """Row numbers of `samples` held-out rows drawn without replacement; all of them, in order, for None."""
    if samples is None or samples >= len(data.test):
        return data.test
    order = keyed.permutation(Key(seed) / name / "samples", torch.tensor([0]), 0, len(data.test))[0]
    return data.test[order[:samples]]


def assemble(model: nn.Module, data: Data, name: str, samples: int | None, seed: int, **extra: Any) -> Task:
    """The task on the held-out rows, or some of them; training rows and labels go along."""
    chosen = pick(data, name, samples, seed)
    if data.names is not None:
        extra.setdefault("space", Space.columns(len(data.names), data.names))
    return Task(
        model,
        data.rows[chosen],
        labels=data.labels[chosen],
        masks=None if data.masks is None else data.masks[chosen],
        train=data.training,
        side=take_side(data.side, chosen),
        train_side=take_side(data.side, data.train),
        ids=chosen,
        name=name,
        **extra,
    )


def quality(outputs: Tensor, labels: Tensor) -> float:
    """Accuracy of class outputs; R^2 of a single one."""
    if outputs.shape[1] > 1:
        return float((outputs.argmax(1) == labels).double().mean())
    truth = labels.double()
    return float(1 - (outputs[:, 0] - truth).square().sum() / (truth - truth.mean()).square().sum())
