"""A small head with embeddings on both sides of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.concepts import Embeddings, Head


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def head() -> Head:
    weight = draw(0, 4, 12)
    return Head(
        weight / weight.norm(dim=1, keepdim=True) * torch.tensor([[1.2], [1.6], [2.0], [1.4]]), draw(1, 4)
    )


@pytest.fixture
def train(head: Head) -> Embeddings:
    """Non-negative rows that the head spreads over all four classes."""
    values = (
        draw(2, 160, 12).abs()
        + 3 * torch.nn.functional.normalize(head.weight, dim=1).clamp(min=0)[torch.arange(160) % 4]
    )
    return Embeddings.of(values, head, torch.arange(160) % 4)


@pytest.fixture
def test(head: Head) -> Embeddings:
    values = draw(3, 40, 12).abs()
    return Embeddings.of(values, head, head.outputs(values).argmax(1))


def image_task(rows: int = 40) -> vd.Task:
    """A map that is averaged before its head."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )
    nn.init.normal_(model[-1].weight, std=2.0)
    inputs = torch.rand(rows, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return vd.Task(model, inputs, train=inputs)
