"""The image networks of the study, and where their public weights come from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from replications.qge.models import Recipe, perceptron
from veridical.data.networks import LeNet


class Block(nn.Module):
    """Two convolutions around a shortcut without weights."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.stride, self.extra = stride, after - before

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        short = x[:, :, :: self.stride, :: self.stride]
        # a shortcut without weights: the channels that are new begin at zero
        half = self.extra // 2
        return torch.relu(out + nn.functional.pad(short, (0, 0, 0, 0, half, half)))


class ResNet20(nn.Module):
    """ResNet-20 for CIFAR with parameter-free shortcuts, named as in the public weights."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(3)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def _fresh(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def given_lenet(folder: Path) -> nn.Module:
    """The LeNet of 98.8%."""
    weights = torch.load(folder / "mnist" / "mnist_lenet.pt", weights_only=True, map_location="cpu")
    names = {"fc1": "dense1", "fc2": "dense2", "fc3": "head"}
    layers = {name: name.rpartition(".")[::2] for name in weights}
    net = LeNet()
    net.load_state_dict({f"{names.get(at, at)}.{kind}": weights[n] for n, (at, kind) in layers.items()})
    return net


def given_resnet20(folder: Path) -> nn.Module:
    """The public ResNet-20 of CIFAR-10."""
    path = folder / "cifar10" / "resnet20-12fca82f.th"
    saved = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    net = ResNet20()
    net.load_state_dict({name.removeprefix("module."): value for name, value in saved.items()})
    return net


def lenet(folder: Path, epochs: int) -> Recipe:
    """LeNet on pixels, trained further on masked digits for the OOD models."""
    return Recipe(partial(_fresh, LeNet), epochs, 2e-3, given=partial(given_lenet, folder))


def digits_perceptron(epochs: int) -> Recipe:
    """An MLP on the 784 pixels."""
    return Recipe(lambda seed: nn.Sequential(nn.Flatten(), perceptron(784, 10, 128, seed)), epochs, 2e-3)


def resnet20(folder: Path, grain: int, epochs: int) -> Recipe:
    """ResNet-20, trained further on images with squares of `grain` pixels missing for the OOD models."""
    given = partial(given_resnet20, folder)
    return Recipe(partial(_fresh, ResNet20), epochs, 1e-3, 1e-3, 128, grain, given)
