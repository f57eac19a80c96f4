"""Rows with a fixed split, shipped weights, and tasks of both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from veridical.core import files
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.models.predictor import Side, take_side
from veridical.values.task import Task

WEIGHTS = Path(__file__).parent / "shipped_weights"
WEIGHTS_KIND = "task weights"
Network = TypeVar("Network", bound=nn.Module)


def stored(name: str, network: Network) -> Network:
    """The network with its shipped weights, which `scripts/make_tasks.py` trained."""
    tensors, _ = files.load_tensors(WEIGHTS / f"{name}.safetensors", WEIGHTS_KIND)
    network.load_state_dict(tensors)
    return network.eval()


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
