"""The networks of the tables: a LeNet and two the size of ResNet-18 and ResNet-50, with random weights."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


def lenet() -> nn.Module:
    """LeNet 6-16-120-84-10 on 28 x 28 inputs."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    ).eval()


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.first_relu = nn.ReLU()
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.last_relu = nn.ReLU()
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first_relu(self.first_norm(self.first(x)))
        out: Tensor = self.last_relu(self.second_norm(self.second(inner)) + self.shortcut(x))
        return out


class _Narrow(nn.Module):
    """A block of three convolutions, the middle one at a quarter of the width."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        width = after // 4
        self.inner = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.last_relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last_relu(self.inner(x) + self.shortcut(x))
        return out


def _photo_network(blocks: list[nn.Module], width: int, first: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, first, 7, 2, 3, bias=False),
        nn.BatchNorm2d(first),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 1000),
    ).eval()


def resnet50() -> nn.Module:
    """A residual network of ResNet-50's widths and depths on 224 x 224 inputs, 1,000 outputs."""
    torch.manual_seed(0)
    before, blocks = 64, list[nn.Module]()
    for after, depth in ((256, 3), (512, 4), (1024, 6), (2048, 3)):
        for i in range(depth):
            blocks.append(_Narrow(before, after, 2 if after > 256 and not i else 1))
            before = after
    return _photo_network(blocks, 2048)


def resnet18(widths: tuple[int, ...] = (64, 64, 128, 256, 512)) -> nn.Module:
    """A residual network of ResNet-18's depth, and of its widths unless others are given, 1,000 outputs."""
    torch.manual_seed(0)
    blocks: list[nn.Module] = [
        block
        for before, after in itertools.pairwise(widths)
        for block in (_Block(before, after, 1 if before == after else 2), _Block(after, after, 1))
    ]
    return _photo_network(blocks, widths[-1], widths[0])
