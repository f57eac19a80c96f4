"""One small task for the tests of meta-evaluation: a linear model on a table, quick to disrupt."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.testing.tasks import tiny_task


def small_table(samples: int = 40, classes: int = 3, **settings: object) -> vd.Task:
    """A two-layer net on six columns, in float64; the column scales differ by a factor of a hundred."""
    key = Key(3) / "meta table"
    scale = torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0, 5.0], dtype=torch.float64)
    x = keyed.normal(key, torch.arange(samples), 0, 6, torch.float64) * scale
    first, second = nn.Linear(6, 8, dtype=torch.float64), nn.Linear(8, classes, dtype=torch.float64)
    with torch.no_grad():
        for module, name in ((first, "first"), (second, "second")):
            module.weight.copy_(keyed.parameter_noise(key, name, module.weight.shape))
            module.bias.zero_()
        first.weight.div_(scale)
    return vd.Task(nn.Sequential(first, nn.Tanh(), second), x, plan=vd.Plan(rows=64), **settings)


@pytest.fixture(scope="session")
def table() -> vd.Task:
    return small_table()


@pytest.fixture(scope="session")
def text() -> vd.Task:
    return tiny_task("text", 12)


@pytest.fixture(scope="session")
def series() -> vd.Task:
    return tiny_task("series", 12)
