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
from veridical.core import key as keyed
from veridical.data.networks import LeNet


def folder() -> Path:
    """Where the data lie: $VERIDICAL_DATA, with the folders that README.md describes."""
    given = os.environ.get("VERIDICAL_DATA")
    if not given or not Path(given).is_dir():
        raise SystemExit("set VERIDICAL_DATA to the folder that holds mnist/ and avila/ (see README.md)")
    return Path(given)


def _idx(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    dims = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def some(count: int, of: int, name: str, seed: int = 0) -> Tensor:
    """A keyed choice of rows: the sets are sorted by class."""
    return keyed.permutation(vd.core.Key(seed) / name, torch.zeros(1, dtype=torch.int64), 0, of)[0, :count]


def mnist(samples: int, seed: int = 0) -> vd.Task:
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
    chosen = some(samples, len(images), "test", seed)
    return vd.Task(net.eval(), images[chosen], labels=labels[chosen], train=train, name="MNIST LeNet")


def avila(samples: int, seed: int = 0) -> vd.Task:
    """A 2-layer MLP on Avila, trained here in a few seconds."""
    parts = []
    for name in ("avila-tr.txt", "avila-ts.txt"):
        lines = [line.split(",") for line in (folder() / "avila" / name).read_text().split()]
        lines = [line for line in lines if len(line) == 11 and line[0][0] in "-0123456789"]
        parts.append(torch.tensor([[float(v) for v in line[:10]] for line in lines]))
        parts.append(torch.tensor(["ABCDEFGHIWXY".index(line[10]) for line in lines]))
    train, train_labels, test, labels = parts
    net = fitted(nn.Sequential(nn.Linear(10, 100), nn.ReLU(), nn.Linear(100, 12)), train, train_labels)
    chosen = some(samples, len(test), "avila", seed)
    return vd.Task(net, test[chosen], labels=labels[chosen], train=train[:512], name="Avila MLP")


ADULT_NUMBERS = (0, 2, 4, 10, 11, 12)


def adult(samples: int, seed: int = 0, linear: bool = False) -> vd.Task:
    """The published 3-layer MLP on Adult (13 features, as OpenXAI makes them), or a logistic regression.

    Six numbers (age, fnlwgt, education-num, capital gain and loss, hours) and seven truth values (private
    work, not married, another occupation than managerial or professional, not a husband, white, male, United
    States), each brought to [0, 1] over the set. The regression is trained here.
    """
    train, train_labels = _adult("adult.data")
    test, labels = _adult("adult.test")
    both = torch.cat([train, test])
    low, high = both.amin(0), both.amax(0)
    train, test = (train - low) / (high - low), (test - low) / (high - low)
    if linear:
        net = fitted(nn.Linear(13, 2), train, train_labels, epochs=20)
    else:
        net = nn.Sequential(nn.Linear(13, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 2))
        path = folder() / "tabular_ann_weights" / "ann_adult.pt"
        weights = torch.load(path, map_location="cpu", weights_only=True)
        net.load_state_dict({name.removeprefix("network."): value for name, value in weights.items()})
    chosen, name = some(samples, len(test), "adult", seed), "Adult LR" if linear else "Adult MLP"
    return vd.Task(net.eval(), test[chosen], labels=labels[chosen], train=train[:512], name=name)


def _adult(name: str) -> tuple[Tensor, Tensor]:
    """Rows (n, 13), unscaled, and whether each earns more than 50,000."""
    lines = (folder() / "adult" / name).read_text().splitlines()
    rows = [[word.strip() for word in line.split(",")] for line in lines]
    rows = [row for row in rows if len(row) == 15]
    numbers = [[float(row[i]) for i in ADULT_NUMBERS] for row in rows]
    truths = [
        [
            row[1] == "Private",
            not row[5].startswith("Married"),
            row[6] not in ("Exec-managerial", "Prof-specialty"),
            row[7] != "Husband",
            row[8] == "White",
            row[9] == "Male",
            row[13] == "United-States",
        ]
        for row in rows
    ]
    features = torch.cat([torch.tensor(numbers), torch.tensor(truths).float()], 1)
    return features, torch.tensor([">50K" in row[14] for row in rows]).long()


def fitted(net: nn.Module, x: Tensor, y: Tensor, epochs: int = 60) -> nn.Module:
    """The network trained from fresh weights, the same ones every time."""
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
