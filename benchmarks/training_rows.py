"""Training rows of a logistic regression on MNIST: the order of methods, and how many retrainings it needs.

    VERIDICAL_DATA=... python -m benchmarks.training_rows --out results --retrainings 800 --workers 16

Reads mnist/ (the npz of training images) under VERIDICAL_DATA. A model of 5,000 images is trained for 20
epochs by stochastic gradient descent, and again on random halves. Writes `training_rows.json`: the linear
datamodelling score of each method with its interval over tests, how often m of the retrainings order the
methods, and each with the next, as all of them do, and the words of `audit_training_rows` at each m.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.auditing import audit_training_rows
from veridical.data import Retraining
from veridical.explainers import training_rows as maps_of
from veridical.functional import spearman
from veridical.jobs import Processes

EPOCHS, RATE, BATCH = 20, 0.1, 64
SIZES = (12, 24, 48, 100, 200, 400)
DRAWS = 200


@cache
def images(rows: int, tests: int) -> tuple[maps_of.Rows, maps_of.Rows]:
    """Rows and tests drawn from MNIST's training images, in [0, 1]."""
    (file,) = sorted(Path(os.environ["VERIDICAL_DATA"], "mnist").glob("*.npz"))[:1]
    with np.load(file) as data:
        names = {data[name].ndim: name for name in data.files}
        x, y = data[names[max(names)]], data[names[1]]
    chosen = np.random.default_rng(0).permutation(len(x))[: rows + tests]
    pixels = torch.tensor(x[chosen]).flatten(1).float() / 255
    labels = torch.tensor(y[chosen]).long()
    return (pixels[:rows], labels[:rows]), (pixels[rows:], labels[rows:])


def train(rows: np.ndarray, data: maps_of.Rows, checkpoints: list[nn.Module] | None = None) -> nn.Module:
    """A linear classifier, by stochastic gradient descent on these rows."""
    x, y = data[0][rows], data[1][rows]
    net = nn.Linear(x.shape[1], 10)
    for epoch in range(EPOCHS):
        for some in torch.randperm(len(x)).split(BATCH):
            net.zero_grad()
            nn.functional.cross_entropy(net(x[some]), y[some]).backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    assert parameter.grad is not None
                    parameter -= RATE * parameter.grad
        if checkpoints is not None and epoch % 4 == 3:
            copy = nn.Linear(x.shape[1], 10)
            copy.load_state_dict(net.state_dict())
            checkpoints.append(copy)
    return net


def fit(rows: np.ndarray, count: int, tests: int) -> nn.Module:
    """What the workers call; each reads the images once."""
    return train(rows, images(count, tests)[0])


def interval(scores: Tensor, draws: int = 400) -> list[float]:
    """Mean over tests and its 95% interval by resampling tests."""
    rng = torch.Generator().manual_seed(0)
    means = scores[torch.randint(len(scores), (draws, len(scores)), generator=rng)].mean(1)
    return [float(scores.mean()), *means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype)).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--tests", type=int, default=100)
    parser.add_argument("--retrainings", type=int, default=800)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    begun, result = time.perf_counter(), dict[str, Any]()
    data, tests = images(given.rows, given.tests)
    torch.manual_seed(0)
    checkpoints: list[nn.Module] = []
    net = train(np.arange(given.rows), data, checkpoints)
    others = [
        train(np.random.default_rng(i).permutation(given.rows)[: given.rows // 2], data) for i in range(5)
    ]
    maps = {
        "influence": maps_of.influence(net, data, tests, damping=0.01, tolerance=1e-4),
        "trak": maps_of.trak(others, data, tests),
        "tracin": maps_of.tracin(checkpoints, data, tests),
        "grad_cos": maps_of.grad_cos(net, data, tests),
        "similarity": maps_of.similarity(data, tests),
        "random": maps_of.random_rows(given.tests, given.rows),
    }
    result["seconds of maps"] = time.perf_counter() - begun
    # workers import this file by its name
    again = partial(import_module("benchmarks.training_rows").fit, count=given.rows, tests=given.tests)
    rows = Retraining(again, data, tests, folder=given.out / "retrainings", executor=Processes(given.workers))
    kept = rows.subsets(given.retrainings)
    answers = rows.answers(kept)
    result["seconds"] = time.perf_counter() - begun
    sums = {name: (values.double() @ kept.T.double()) for name, values in maps.items()}
    result["lds"] = {name: interval(spearman(each, answers.T)) for name, each in sums.items()}
    order = sorted(maps, key=lambda name: -result["lds"][name][0])
    rng = torch.Generator().manual_seed(1)
    result["order"], result["by retrainings"] = order, {}
    pairs = [(order[i], order[i + 1]) for i in range(len(order) - 1)]
    for size in [size for size in SIZES if size < given.retrainings]:
        drawn = []
        for _ in range(DRAWS):
            some = torch.randperm(given.retrainings, generator=rng)[:size]
            drawn.append([float(spearman(sums[who][:, some], answers.T[:, some]).mean()) for who in order])
        ahead = -np.diff(np.array(drawn), axis=1)
        row: dict[str, Any] = {"same order": float((ahead > 0).all(1).mean())}
        for number, (first, second) in enumerate(pairs):
            apart = ahead[:, number]
            row[f"{first} before {second}"] = [float((apart > 0).mean()), float(apart.std())]
        if size >= 48:
            audit = audit_training_rows(rows, maps, size, reference=0)
            row["words"] = {place.explainer: place.status for place in audit.places}
        result["by retrainings"][size] = row
        print(size, row, flush=True)
    gaps = {f"{a} - {b}": spearman(sums[a], answers.T) - spearman(sums[b], answers.T) for a, b in pairs}
    result["differences"] = {pair: interval(gap) for pair, gap in gaps.items()}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "training_rows.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result["lds"], indent=1), f"{result['seconds']:.0f} s")


if __name__ == "__main__":
    main()
