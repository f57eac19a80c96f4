"""MNIST and its LeNet, read from the folder in VERIDICAL_DATA; object masks are bounding boxes."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import veridical as vd
from veridical.core import key as keyed
from veridical.data.networks import LeNet


def folder() -> Path:
    """Where the data lie: $VERIDICAL_DATA, with mnist/ inside."""
    given = os.environ.get("VERIDICAL_DATA")
    if not given or not Path(given).is_dir():
        raise SystemExit("set VERIDICAL_DATA to the folder that holds mnist/ (see README.md)")
    return Path(given)


def idx(path: Path) -> np.ndarray:
    """The array of an idx file."""
    raw = gzip.decompress(path.read_bytes())
    dims = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def bounding_boxes(images: Tensor) -> Tensor:
    """The smallest box around the non-zero pixels of each image (N, 1, H, W), filled."""
    lit = images[:, 0] > 0

    def between(line: Tensor) -> Tensor:
        forth = line.to(torch.int64).cummax(-1).values
        back = line.flip(-1).to(torch.int64).cummax(-1).values.flip(-1)
        return (forth & back).bool()

    rows, columns = between(lit.any(2)), between(lit.any(1))
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def lenet() -> torch.nn.Module:
    """The LeNet of the paper's repository."""
    net = LeNet()
    weights = torch.load(folder() / "mnist" / "mnist_lenet.pt", map_location="cpu", weights_only=True)
    net.load_state_dict(dict(zip(net.state_dict(), weights.values(), strict=True)))
    return net.eval()


def mnist(samples: int) -> vd.Task:
    """Test images drawn by key, explained for the predicted class."""
    here = folder() / "mnist"
    images = torch.tensor(idx(here / "t10k-images-idx3-ubyte.gz")).float()[:, None] / 255
    labels = torch.tensor(idx(here / "t10k-labels-idx1-ubyte.gz")).long()
    order = keyed.permutation(
        vd.core.Key(0) / "metaquantus", torch.zeros(1, dtype=torch.int64), 0, len(images)
    )[0]
    rows = order[:samples]
    x = images[rows]
    return vd.Task(lenet(), x, labels=labels[rows], masks=bounding_boxes(x), ids=rows, name="MNIST LeNet")


class _ArraysOnly(pickle.Unpickler):
    """Reads pickled arrays and containers; anything else in the file could run code and is refused."""

    ALLOWED: ClassVar[set[str]] = {"_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer"}

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in self.ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"the file wants {module}.{name}; only arrays are read")


def pickled_arrays(path: Path) -> dict[str, np.ndarray]:
    """The dictionary of arrays that an .npy file of one object holds."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        found = _ArraysOnly(file).load()
    return dict(found.item())


def given_masks_agree() -> bool | None:
    """Whether our boxes equal the masks of the 50 given images; None where those are not there."""
    path = folder() / "mnist" / "metaquantus_mnist_test_set.npy"
    if not path.is_file():
        return None
    stored = pickled_arrays(path)
    boxes = bounding_boxes(torch.tensor(stored["x_batch"]))
    return bool((boxes == torch.tensor(stored["s_batch"]).bool()).all())
