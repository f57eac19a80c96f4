"""The data and models of the replication, read from the folder in VERIDICAL_DATA."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from veridical import rng
from veridical.tasks.networks import LeNet


def folder() -> Path:
    """Where the data lie: $VERIDICAL_DATA, with mnist/ and avila/ as README.md describes them."""
    given = os.environ.get("VERIDICAL_DATA")
    if not given or not Path(given).is_dir():
        raise SystemExit("set VERIDICAL_DATA to the folder that holds mnist/ and avila/ (see README.md)")
    return Path(given)


def _idx(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    dims = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def some(count: int, of: int, name: str) -> Tensor:
    """A keyed choice of rows: the sets are sorted by class."""
    return rng.permutation(vd.Key(0) / name, torch.zeros(1, dtype=torch.int64), 0, of)[0, :count]


def mnist(samples: int) -> vd.Task:
    """The LeNet on MNIST test images, with 512 training images as reference rows."""
    here = folder() / "mnist"
    images = torch.tensor(_idx(here / "t10k-images-idx3-ubyte.gz")).float()[:, None] / 255
    labels = torch.tensor(_idx(here / "t10k-labels-idx1-ubyte.gz")).long()
    stored = np.load(here / "mnist_train_60k.npz", allow_pickle=False)
    rows = next(stored[name] for name in stored.files if stored[name].ndim > 1)
    train = torch.tensor(rows[some(512, len(rows), "train").numpy()]).float().reshape(-1, 1, 28, 28)
    train = train / 255 if float(train.max()) > 1 else train
    net = LeNet()
    weights = torch.load(here / "mnist_lenet.pt", map_location="cpu", weights_only=True)
    net.load_state_dict(dict(zip(net.state_dict(), weights.values(), strict=True)))
    chosen = some(samples, len(images), "test")
    return vd.Task(net.eval(), images[chosen], labels=labels[chosen], train=train, name="MNIST LeNet")


def avila(samples: int) -> vd.Task:
    """A 2-layer MLP on Avila, trained here in a few seconds."""
    parts = []
    for name in ("avila-tr.txt", "avila-ts.txt"):
        lines = [line.split(",") for line in (folder() / "avila" / name).read_text().split()]
        lines = [line for line in lines if len(line) == 11 and line[0][0] in "-0123456789"]
        parts.append(torch.tensor([[float(v) for v in line[:10]] for line in lines]))
        parts.append(torch.tensor(["ABCDEFGHIWXY".index(line[10]) for line in lines]))
    train, train_labels, test, labels = parts
    net = _fitted(nn.Sequential(nn.Linear(10, 100), nn.ReLU(), nn.Linear(100, 12)), train, train_labels)
    chosen = some(samples, len(test), "avila")
    return vd.Task(net, test[chosen], labels=labels[chosen], train=train[:512], name="Avila MLP")


def _fitted(net: nn.Module, x: Tensor, y: Tensor, epochs: int = 60) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for module in net.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(256):
                loss = F.cross_entropy(net(x[rows]), y[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return net.eval()


def accuracy(task: vd.Task) -> float:
    """The share of samples whose predicted class is their label."""
    return float((task.predictions == task.labels).double().mean())
