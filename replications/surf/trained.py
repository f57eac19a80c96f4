"""Heads trained here: digit attributes (multi-label), diabetes (regression), a second CNN on CIFAR."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from replications.surf import data
from scripts.training import initialise
from veridical.core.key import Key
from veridical.data.networks import DigitsCNN

ATTRIBUTES = {
    "even": (0, 2, 4, 6, 8),
    "above four": (5, 6, 7, 8, 9),
    "prime": (2, 3, 5, 7),
    "has a loop": (0, 6, 8, 9),
    "has a straight stroke": (1, 4, 5, 7),
}


class SmallVGG(nn.Module):
    """Six convolutions with norms, three poolings, the mean over positions, and a linear head."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width in (64, 128, 256):
            for _ in range(2):
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(256, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


def trained(model: nn.Module, x: Tensor, y: Tensor, epochs: int, rate: float, name: str) -> nn.Module:
    """Adam with one cycle; cross-entropy for classes, its binary form for attributes. Images are flipped."""
    generator = torch.Generator().manual_seed(0)
    initialise(model, Key(0) / name)
    model.to(x.device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    steps = epochs * -(-len(x) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    for _ in range(epochs):
        for index in torch.randperm(len(x), generator=generator).to(x.device).split(128):
            rows = x[index]
            if rows.shape[1] == 3:
                flip = torch.rand(len(index), generator=generator).to(x.device) < 0.5
                rows = torch.where(flip[:, None, None, None], rows.flip(-1), rows)
            answer = model(rows)
            loss = F.cross_entropy(answer, y[index])
            if y.dim() == 2:
                loss = F.binary_cross_entropy_with_logits(answer, y[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.cpu().eval()


def attributes() -> vd.Task:
    """Five attributes of 8 x 8 digits: one binary output each."""
    digits = vd.tasks.load("digits")
    assert digits.train is not None
    assert digits.train_labels is not None
    assert digits.labels is not None
    table = torch.zeros(10, len(ATTRIBUTES))
    for column, members in enumerate(ATTRIBUTES.values()):
        table[list(members), column] = 1
    model = trained(
        DigitsCNN(len(ATTRIBUTES)), digits.train, table[digits.train_labels], 20, 3e-3, "attributes"
    )
    return vd.Task(
        model,
        digits.inputs,
        labels=table[digits.labels],
        train=(digits.train, table[digits.train_labels]),
        head="multilabel",
        name="CNN / digit attributes",
    )


def vgg(train_rows: int, test_rows: int, device: str, epochs: int = 30) -> vd.Task:
    """A small VGG trained on the CIFAR train images."""
    task = data.cifar(10_000, test_rows)
    assert task.train is not None
    assert task.train_labels is not None
    model = trained(
        SmallVGG(), task.train.to(device), task.train_labels.to(device), epochs, 3e-3, "small VGG"
    )
    few = data.spread(task.train_labels, train_rows)
    return vd.Task(
        model,
        task.inputs,
        labels=task.labels,
        train=(task.train[few], task.train_labels[few]),
        name="small VGG / CIFAR-10",
    )
