"""Tasks whose weights are part of the package, trained by scripts/make_tasks.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core.key import Key
from veridical.data import reviews as writing
from veridical.data.data import Data, assemble, pick, quality, split
from veridical.data.networks import DigitsCNN, TextCNN, mlp
from veridical.data.training import Recipe, fit
from veridical.perturb.fills import Token
from veridical.values import files
from veridical.values.space import Space
from veridical.values.task import Task

WEIGHTS = Path(__file__).parent / "weights"
KIND = "task weights"


@dataclass(frozen=True)
class Shipped:
    """How one shipped model is built, on which data, and how it was trained."""

    network: Callable[[], nn.Module]
    data: Callable[[], Data]
    recipe: Recipe


def train(name: str) -> tuple[nn.Module, float]:
    """Train a shipped model anew; also its accuracy (or R^2) on the held-out rows."""
    plan = SHIPPED[name]
    data = plan.data()
    model = fit(plan.network(), *data.training, plan.recipe, name)
    with torch.no_grad():
        outputs = model(data.rows[data.test])
    return model, quality(outputs, data.labels[data.test])


def stored(name: str) -> nn.Module:
    """The shipped model of this name."""
    tensors, _ = files.read(WEIGHTS / f"{name}.safetensors", KIND)
    model = SHIPPED[name].network()
    model.load_state_dict(tensors)
    return model.eval()


def shipped(samples: int | None, seed: int, name: str, **extra: Any) -> Task:
    """The task of a shipped model whose data need no further word."""
    return assemble(stored(name), SHIPPED[name].data(), name, samples, seed, **extra)


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


def reviews_data() -> Data:
    """3,000 reviews in our own small language; masks mark the words that carry the opinion."""
    written = writing.write_reviews(3000, Key(0))
    parts = split(len(written.tokens), 0.2, Key(0) / "reviews")
    return Data(written.tokens, written.labels, *parts, masks=written.opinion)


# --- the tasks ------------------------------------------------------------------------------------------


digits, breast_cancer, breast_cancer_logistic, wine, wine_logistic = (
    partial(shipped, name=name)
    for name in ("digits", "breast_cancer", "breast_cancer_logistic", "wine", "wine_logistic")
)
diabetes = partial(shipped, name="diabetes", head="regression")


def reviews(samples: int | None, seed: int) -> Task:
    """A convolution over words on product reviews in a small language of our own."""
    data = reviews_data()
    tokens = data.rows[pick(data, "reviews", samples, seed)]
    space = Space.tokens(writing.LENGTH, tokens != 0, writing.words_of(tokens))
    return assemble(stored("reviews"), data, "reviews", samples, seed, space=space, fill=Token(0))


_cancer, _wine, _diabetes = (partial(table_data, table) for table in ("breast_cancer", "wine", "diabetes"))

SHIPPED: dict[str, Shipped] = {
    "digits": Shipped(DigitsCNN, digits_data, Recipe(30, rate=3e-3, decay=1e-3)),
    "breast_cancer": Shipped(partial(mlp, 30, 2), _cancer, Recipe(40, rate=3e-3, decay=1e-2)),
    "breast_cancer_logistic": Shipped(partial(nn.Linear, 30, 2), _cancer, Recipe(60, rate=1e-2, decay=1e-1)),
    "wine": Shipped(partial(mlp, 13, 3), _wine, Recipe(60, rate=3e-3, decay=1e-2)),
    "wine_logistic": Shipped(partial(nn.Linear, 13, 3), _wine, Recipe(80, rate=1e-2, decay=1e-1)),
    "diabetes": Shipped(
        partial(mlp, 10, 1, 16), _diabetes, Recipe(40, rate=3e-3, decay=1e-1, loss="squared")
    ),
    "reviews": Shipped(
        partial(TextCNN, len(writing.VOCABULARY)), reviews_data, Recipe(20, rate=5e-3, decay=1e-2)
    ),
}
