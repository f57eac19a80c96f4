"""Colour-MNIST: digits on photographs, made of the MNIST and CIFAR-10 images, and networks trained on it.

A digit of 16 x 16 pixels lies anywhere on a photograph of 32 x 32: its box covers a quarter of the image, as
the paper's does (A.4). Training digits lie on training photographs, at another place each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from replications.f_fidelity.data import CIFAR_MEAN, CIFAR_STD, cifar
from replications.metaquantus.data import folder, idx
from veridical.core import key as keyed
from veridical.data.networks import Block

SIDE, DIGIT = 32, 16
WIDTH = 16
"""Channels of the ResNet-9's first layer; a quarter of the usual, which the data do not need."""


def photographs(part: str) -> Tensor:
    """The CIFAR-10 images (N, 3, 32, 32) in [0, 1] of "train" or "test"."""
    return (cifar(part)[0] * CIFAR_STD + CIFAR_MEAN).clamp(0, 1)


def digits(part: str) -> tuple[Tensor, Tensor]:
    """MNIST images (N, 1, 16, 16) in [0, 1] and their labels."""
    here = folder() / "mnist"
    if part == "train":
        with np.load(here / "mnist_train_60k.npz") as stored:
            images, labels = stored["x_train"], stored["y_train"]
    else:
        images, labels = idx(here / "t10k-images-idx3-ubyte.gz"), idx(here / "t10k-labels-idx1-ubyte.gz")
    x = torch.tensor(images).float()[:, None] / 255
    small = F.interpolate(x, size=(DIGIT, DIGIT), mode="bilinear", antialias=True)
    return small.clamp(0, 1), torch.tensor(labels).long()


def pasted(digit: Tensor, photograph: Tensor, top: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """White digits on photographs with their corners at (top, left), and the boxes (N, 1, 32, 32)."""
    count = len(digit)
    rows = (top[:, None] + torch.arange(DIGIT, device=top.device))[:, :, None]
    columns = (left[:, None] + torch.arange(DIGIT, device=left.device))[:, None, :]
    which = torch.arange(count, device=top.device)[:, None, None]
    canvas = torch.zeros(count, SIDE, SIDE, device=digit.device)
    canvas[which, rows, columns] = digit[:, 0]
    box = torch.zeros(count, SIDE, SIDE, dtype=torch.bool, device=digit.device)
    box[which, rows, columns] = True
    ink = canvas[:, None]
    return photograph * (1 - ink) + ink, box[:, None]


def samples(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Test images, labels, boxes and ids, all drawn by key."""
    digit, labels = digits("test")
    photograph = photographs("test")
    key, one = vd.core.Key(0) / "cmnist", torch.zeros(1, dtype=torch.int64)
    ids = keyed.permutation(key / "digit", one, 0, len(digit))[0][:count]
    behind = keyed.integers(key / "photograph", ids, 0, 1, len(photograph))[:, 0]
    places = keyed.integers(key / "place", ids, 0, 2, SIDE - DIGIT + 1)
    x, boxes = pasted(digit[ids], photograph[behind], places[:, 0], places[:, 1])
    return x, labels[ids], boxes, ids


class Residual(nn.Module):
    """Two convolutions, added to what went in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu2(x + self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x))))))


def _convolution(inside: int, outside: int) -> list[nn.Module]:
    return [nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]


def resnet9(width: int = WIDTH) -> nn.Module:
    """A ResNet-9: four convolutions, a residual block after the second and the last, one dense layer."""
    return nn.Sequential(
        *_convolution(3, width),
        *_convolution(width, 2 * width),
        nn.MaxPool2d(2),
        Residual(2 * width),
        *_convolution(2 * width, 4 * width),
        nn.MaxPool2d(2),
        *_convolution(4 * width, 4 * width),
        nn.MaxPool2d(2),
        Residual(4 * width),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width * 4, 10),
    )


def lenet() -> nn.Module:
    """LeNet's layers, wider and for 32 x 32 pixels in colour: no residual path, no normalisation."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 64, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


class VisionTransformer(nn.Module):
    """A small vision transformer: 64 patches of 4 x 4 pixels, the mean of their tokens is classified."""

    def __init__(self, width: int = 64, blocks: int = 4, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(torch.zeros(1, (SIDE // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)
        nn.init.normal_(self.position, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        there = torch.ones(tokens.shape[:2], dtype=torch.bool, device=x.device)
        for block in self.blocks:
            tokens = block(tokens, there)
        answer: Tensor = self.head(self.norm(tokens).mean(1))
        return answer


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "ResNet-9": (resnet9, 4),
    "LeNet": (lenet, 30),
    "ViT": (VisionTransformer, 60),
}
"""How each network is built, and for how many epochs it is trained."""


def trained(name: str, store: Path, device: torch.device, epochs: int | None = None) -> nn.Module:
    """The network of this name, trained once and kept in the folder `store`."""
    build, usual = NETWORKS[name]
    path = store / f"cmnist_{name}.pt"
    if path.is_file():
        net = build()
        net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        return net.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = build().to(device)
    _fit(net, device, epochs or usual)
    store.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save({key: value.cpu() for key, value in net.state_dict().items()}, part)
    part.replace(path)
    return net.cpu().eval()


def _fit(net: nn.Module, device: torch.device, epochs: int, batch: int = 256) -> None:
    """Adam with a rate that rises and falls; every digit meets another photograph and place each epoch."""
    digit, labels = (part.to(device) for part in digits("train"))
    photograph = photographs("train").to(device)
    draw = torch.Generator(device).manual_seed(0)
    steps = epochs * (len(digit) // batch)
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, 20 * (step + 1) / steps) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    net.train()
    for _ in range(epochs):
        order = torch.randperm(len(digit), generator=draw, device=device)
        for some in order[: len(order) // batch * batch].split(batch):
            behind = torch.randint(len(photograph), (batch,), generator=draw, device=device)
            places = torch.randint(SIDE - DIGIT + 1, (2, batch), generator=draw, device=device)
            x, _ = pasted(digit[some], photograph[behind], *places)
            loss = F.cross_entropy(net(x), labels[some])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            rate.step()
    net.eval()


def cmnist(count: int, network: str, store: Path, device: str | None, epochs: int | None = None) -> vd.Task:
    """The task of Table 5: test images, a trained network, boxes; explained for the predicted class."""
    place = torch.device(device or "cpu")
    net = trained(network, store, place, epochs)
    x, labels, boxes, ids = samples(count)
    return vd.Task(net, x, labels=labels, masks=boxes, ids=ids, name=f"cMNIST {network}")
