"""What adapters of other packages share: their base, labels, and global generators put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.core.key import Key
from veridical.explainers.base import Explainer
from veridical.functional.devices import random_states
from veridical.values.task import Task


@dataclass(frozen=True)
class _Adapter(Explainer):
    """What the adapters share: settings that hold objects are written down as text."""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "settings": self._described()}

    def _described(self) -> str:
        return ""


def _over_inputs(maps: Tensor, task: Task, name: str) -> Tensor:
    """Maps of a layer (n, 1, h, w) come back at the size of the image."""
    if maps.dim() == 4 and task.inputs.dim() == 4 and maps.shape[1] == 1 and maps.shape != task.inputs.shape:
        size = tuple(task.inputs.shape[-2:])
        if tuple(maps.shape[-2:]) != size:
            maps = nn.functional.interpolate(maps, size=size, mode="bilinear", align_corners=False)
        return maps.expand_as(task.inputs) / task.inputs.shape[1]
    return maps


def _label(thing: Any) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__))


def _short(value: Any) -> str:
    return f"tensor{tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


@contextmanager
def seeded_torch(key: Key) -> Iterator[None]:
    """Seed torch's global generators for code that draws from them, and put them back."""
    with torch.random.fork_rng(devices=random_states()):
        torch.manual_seed(key.state & (2**63 - 1))
        yield


@contextmanager
def seeded_numpy(key: Key) -> Iterator[None]:
    """For code that draws from numpy's global generator: seed it, then put it back."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(key.state & 0xFFFFFFFF)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
