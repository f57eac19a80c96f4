"""The data and models of the replication, read from the folder in VERIDICAL_DATA."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

CIFAR_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR_MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
CIFAR_STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1)


def folder() -> Path:
    """Where the data lie: $VERIDICAL_DATA, with cifar10/ and mnist/ as README.md describes them."""
    given = os.environ.get("VERIDICAL_DATA")
    if not given or not Path(given).is_dir():
        raise SystemExit("set VERIDICAL_DATA to the folder that holds cifar10/ and mnist/ (see README.md)")
    return Path(given)


def cifar(part: str) -> tuple[Tensor, Tensor]:
    """Normalised images (N, 3, 32, 32) and labels of the 10,000 training or test images, sorted by class."""
    from PIL import Image

    found = {}
    # read in the archive's own order: going back in a compressed stream reads it again from its start
    with tarfile.open(folder() / "cifar10" / f"cifar10_jpg_{part}10k.tar.gz", "r|gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                found[member.name] = np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB"))
    names = sorted(found)
    x = torch.tensor(np.stack([found[name] for name in names])).permute(0, 3, 1, 2).float() / 255
    labels = [CIFAR_CLASSES.index(Path(name).parent.name) for name in names]
    return (x - CIFAR_MEAN) / CIFAR_STD, torch.tensor(labels)


class Block(nn.Module):
    """A residual block with a parameter-free shortcut (option A)."""

    def __init__(self, inside: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu2 = nn.ReLU()
        self.widen = (planes - inside) // 2 if stride > 1 else 0

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        if self.widen:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.widen, self.widen))
        return self.relu2(out + x)


class ResNet20(nn.Module):
    """The ResNet-20 of CIFAR-10: three stages of three blocks with 16, 32 and 64 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = self._stage(16, 16, 1)
        self.layer2 = self._stage(16, 32, 2)
        self.layer3 = self._stage(32, 64, 2)
        self.linear = nn.Linear(64, 10)

    @staticmethod
    def _stage(inside: int, planes: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            Block(inside, planes, stride), Block(planes, planes, 1), Block(planes, planes, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def resnet20() -> nn.Module:
    """The trained ResNet-20."""
    stored = torch.load(folder() / "cifar10" / "resnet20-12fca82f.th", map_location="cpu", weights_only=True)
    state = {name.removeprefix("module."): value for name, value in stored["state_dict"].items()}
    model = ResNet20()
    # the file is older than batch norm's counter of batches, which evaluation does not use
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
        raise SystemExit(f"the stored ResNet-20 is another one: {missing} {unexpected}")
    return model.eval()


def mnist(part: str) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 28, 28) in [0, 1] and labels: "train" (60,000, sorted by class) or "test" (10,000)."""
    base = folder() / "mnist"
    if part == "train":
        stored = np.load(base / "mnist_train_60k.npz", allow_pickle=False)
        images, labels = (stored[name] for name in sorted(stored, key=lambda n: -stored[n].ndim))
        x = torch.tensor(images).float().reshape(-1, 1, 28, 28)
    else:
        x = torch.tensor(_idx(base / "t10k-images-idx3-ubyte.gz", 16)).float().reshape(-1, 1, 28, 28)
        labels = _idx(base / "t10k-labels-idx1-ubyte.gz", 8)
    return x / 255 if x.max() > 1 else x, torch.tensor(labels).long()


def _idx(path: Path, header: int) -> np.ndarray:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header).copy()


class LeNet(nn.Module):
    """LeNet 6-16-120-84-10 with max pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv_2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc_1 = nn.Linear(400, 120)
        self.fc_2 = nn.Linear(120, 84)
        self.fc_3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv_1(x)))
        x = self.pool(F.relu(self.conv_2(x))).flatten(1)
        return self.fc_3(F.relu(self.fc_2(F.relu(self.fc_1(x)))))


def lenet() -> nn.Module:
    """The trained LeNet; its parameters are taken in their order, whatever they are called."""
    stored = torch.load(folder() / "mnist" / "mnist_lenet.pt", map_location="cpu", weights_only=True)
    model = LeNet()
    model.load_state_dict(dict(zip(model.state_dict(), stored.values(), strict=True)))
    return model.eval()


def balanced(labels: Tensor, per_class: int, seed: int = 0) -> Tensor:
    """Row numbers drawn at random, `per_class` of each class: the sets are sorted by class."""
    generator = torch.Generator().manual_seed(seed)
    rows = [
        torch.nonzero(labels == c)[:, 0][torch.randperm(int((labels == c).sum()), generator=generator)]
        for c in labels.unique()
    ]
    return torch.cat([row[:per_class] for row in rows]).sort().values
