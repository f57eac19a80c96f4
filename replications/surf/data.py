"""The two heads of the replication: LeNet on MNIST and ResNet-20 on CIFAR-10, read from VERIDICAL_DATA."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.data.networks import LeNet

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def folder() -> Path:
    """Where mnist/ and cifar10/ lie."""
    given = os.environ.get("VERIDICAL_DATA")
    if not given or not Path(given).is_dir():
        raise SystemExit("set VERIDICAL_DATA to the folder that holds mnist/ and cifar10/ (see README.md)")
    return Path(given)


def spread(labels: Tensor, rows: int) -> Tensor:
    """The first rows of every class, equally many."""
    return torch.cat([(labels == c).nonzero()[: rows // 10, 0] for c in range(10)])


def mnist(train_rows: int, test_rows: int) -> vd.Task:
    """LeNet with public weights; inputs in [0, 1]."""
    place = folder() / "mnist"
    held = np.load(place / "mnist_train_60k.npz", allow_pickle=False)
    arrays = {name: held[name] for name in held.files}
    images = next(a for a in arrays.values() if a.ndim >= 3 or (a.ndim == 2 and a.shape[1] == 784))
    labels = torch.as_tensor(next(a for a in arrays.values() if a.ndim == 1 and len(a) == len(images))).long()
    train = torch.as_tensor(images).reshape(-1, 1, 28, 28).float()
    train = train / 255 if float(train.max()) > 1.5 else train
    raw = gzip.decompress((place / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    test = torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(-1, 1, 28, 28).float() / 255
    truth = gzip.decompress((place / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    test_labels = torch.frombuffer(bytearray(truth), dtype=torch.uint8).long()
    model = LeNet()
    weights = torch.load(place / "mnist_lenet.pt", map_location="cpu", weights_only=True)
    # the layers come in the same order under other names
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    few, some = spread(test_labels, test_rows), spread(labels, train_rows)
    return vd.Task(
        model.eval(),
        test[few],
        labels=test_labels[few],
        train=(train[some], labels[some]),
        name="LeNet / MNIST",
    )


class Block(nn.Module):
    """Two convolutions around a shortcut without weights."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.stride, self.new = stride, (after - before) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        kept = x[:, :, :: self.stride, :: self.stride]
        return torch.relu(out + nn.functional.pad(kept, (0, 0, 0, 0, self.new, self.new)))


class ResNet20(nn.Module):
    """Three stages of three blocks, the mean over positions, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        stages = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
        for number, (before, after, stride) in enumerate(stages, 1):
            blocks = [Block(before, after, stride), Block(after, after, 1), Block(after, after, 1)]
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        for number in (1, 2, 3):
            x = self.get_submodule(f"layer{number}")(x)
        return self.linear(x.mean((2, 3)))


MEAN, STD = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])


def images(part: str, rows: int) -> tuple[Tensor, Tensor]:
    """The first images of every class, normalised as the weights expect."""
    from PIL import Image

    found: dict[str, list[Tensor]] = {name: [] for name in CLASSES}
    with tarfile.open(folder() / "cifar10" / f"cifar10_jpg_{part}10k.tar.gz", "r|gz") as archive:
        for member in archive:
            name = Path(member.name).parent.name
            file = archive.extractfile(member) if member.isfile() and name in found else None
            if file is not None and len(found[name]) < rows // 10:
                picture = np.array(Image.open(io.BytesIO(file.read())).convert("RGB"))
                found[name].append(torch.from_numpy(picture).movedim(-1, 0).float() / 255)
    x = torch.stack([image for name in CLASSES for image in found[name]])
    labels = torch.tensor([c for c, name in enumerate(CLASSES) for _ in found[name]])
    return (x - MEAN[:, None, None]) / STD[:, None, None], labels


def cifar(train_rows: int, test_rows: int) -> vd.Task:
    """ResNet-20 with public weights."""
    state = torch.load(folder() / "cifar10" / "resnet20-12fca82f.th", map_location="cpu", weights_only=True)
    model = ResNet20()
    held = {name.removeprefix("module."): value for name, value in state["state_dict"].items()}
    model.load_state_dict(held)
    x, labels = images("test", test_rows)
    train = images("train", train_rows)
    return vd.Task(model.eval(), x, labels=labels, train=train, name="ResNet-20 / CIFAR-10")
