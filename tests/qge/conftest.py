"""Small models whose rankings can all be looked at."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import veridical as vd


def table(features: int, samples: int = 4, seed: int = 1, scale: float = 2.0) -> vd.Task:
    """A wiggly two-layer model over columns, in float64, with zero fill."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(features, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * scale / p.shape[-1] ** 0.5)
    x = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    return vd.Task(net, x, fill=0.0)


def respond(task: vd.Task, sample: int) -> Callable[[np.ndarray], float]:
    """The explained probability of one row, asked straight."""
    target = int(task.targets[sample])

    def ask(row: np.ndarray) -> float:
        with torch.no_grad():
            return float(task.model(torch.tensor(row)[None]).softmax(-1)[0, target])

    return ask


@pytest.fixture
def small() -> vd.Task:
    return table(5)
