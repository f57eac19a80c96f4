"""Do the limits of a judge's certificate hold on fresh data and fresh damage?

    python -m replications.f_fidelity.judges --out judges.jsonl [--data $VERIDICAL_DATA] [--seeds 3]

Models of several tables and images, each with judges damaged in three ways: fine-tuned at growing rates, the
weights under noise, and *another model* trained from another seed. For each judge: its certificate, and in
which share of samples (ties count half) FFid+ (the probability variant) prefers the model's own integrated
gradients to the judge's, and to noise. A fair judge has no preference between the first two.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.fidelity.artefact import check_held_out
from veridical.fidelity.falls import mean_over_sizes, measure
from veridical.fidelity.metrics import LEVELS
from veridical.fidelity.training import split
from veridical.fidelity.training_rows import Rows, training_rows

BETA, DRAWS = 0.1, 20
RATES = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
NOISE = (0.05, 0.1, 0.2, 0.4)


def tables(folder: Path | None) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, columns and classes of every table at hand."""
    from sklearn import datasets

    for name in ("wine", "breast_cancer", "digits"):
        found = getattr(datasets, f"load_{name}")()
        yield name, found.data, found.target
    if folder is None:
        return
    import pandas as pd

    german = pd.read_csv(folder / "german" / "german.data", sep=" ", header=None)
    columns = german.drop(columns=20)
    coded = columns.apply(lambda c: c if c.dtype.kind in "if" else pd.factorize(c)[0])
    yield "german", coded.to_numpy(float), german[20].to_numpy() - 1
    ship = pd.read_csv(folder / "titanic" / "titanic3.csv")
    ship = ship.assign(sex=pd.factorize(ship["sex"])[0], embarked=pd.factorize(ship["embarked"])[0])
    kept = ship[["pclass", "sex", "age", "sibsp", "parch", "fare", "embarked"]]
    yield "titanic", kept.fillna(kept.median()).to_numpy(float), ship["survived"].to_numpy()


def network(columns: int, classes: int, image: bool, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    if image:
        conv = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        return nn.Sequential(*conv, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16, classes))
    hidden = (nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(64, classes))


def trained(net: nn.Module, x: Tensor, y: Tensor, epochs: int = 40) -> nn.Module:
    steps = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            steps.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            steps.step()
    return net.eval()


def tuned(model: nn.Module, rows: Rows, learn: Tensor, rate: float, epochs: int = 3) -> nn.Module:
    """Fine-tuned under masks and kept as it is at the end, however bad."""
    net = copy.deepcopy(model).train()
    steps = torch.optim.Adam(net.parameters(), rate)
    for epoch in range(epochs):
        for index in learn[torch.randperm(len(learn))].split(64):
            steps.zero_grad()
            x = rows.masked(index, BETA, vd.core.Key(0), epoch + 1)
            nn.functional.cross_entropy(net(x), rows.targets[index]).backward()
            steps.step()
    return net.eval()


def noisy(model: nn.Module, scale: float) -> nn.Module:
    net = copy.deepcopy(model)
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(1 + scale * torch.randn_like(weight))
    return net


def wins(a: Tensor, b: Tensor) -> float:
    return float(((a > b + 1e-9).double() + 0.5 * ((a - b).abs() <= 1e-9)).mean())


def falls(task: vd.Task, explanation: vd.Explanation, truth: Tensor, beta: float | None) -> Tensor:
    found = measure(task, explanation, truth, levels=LEVELS, beta=beta, draws=DRAWS, signs=("plus",))
    return mean_over_sizes(found["plus"].probability)


def study(name: str, x: np.ndarray, y: np.ndarray, image: bool, seed: int, samples: int) -> Iterator[dict]:
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order], y[order]
    cut = max(samples, len(x) * 3 // 10)
    mean, std = x[cut:].mean(0), x[cut:].std(0) + 1e-9
    scaled = (x / 16.0).reshape(-1, 1, 8, 8) if image else (x - mean) / std
    data, labels = torch.tensor(scaled).float(), torch.tensor(y).long()
    train = (data[cut:], labels[cut:])
    size = (data[0].numel(), int(labels.max()) + 1, image)
    model = trained(network(*size, seed), *train)
    task = vd.Task(model, data[:samples], labels=labels[:samples], train=train, fill="zero", name=name)
    task = task.with_targets(task.labels)
    rows = training_rows(task)
    learn, held = split(len(rows.inputs), 0.1, vd.core.Key(seed) / "fine-tuning", task.device)
    judges = [("rate", rate, tuned(model, rows, learn, rate)) for rate in RATES]
    judges += [("noise", scale, noisy(model, scale)) for scale in NOISE]
    judges.append(("another seed", 0.0, trained(network(*size, 1000 + seed), *train)))
    own, noise = vd.explain("integrated_gradients", task), vd.explain("random", task, seed=seed)
    plain = {who: falls(task, e, task.labels, None) for who, e in (("own", own), ("noise", noise))}
    for kind, strength, net in judges:
        judge = task.with_module(net)
        found = check_held_out(task, judge, rows, held)
        other = vd.explain("integrated_gradients", judge)
        maps = {"own": own, "its": other, "noise": noise}
        by_judge = {who: falls(judge, e, task.labels, BETA) for who, e in maps.items()}
        yield {
            "set": f"{name} {'image' if image else 'columns'}",
            "seed": seed,
            "model accuracy": float((task.predictions == task.labels).double().mean()),
            "damage": kind,
            "strength": strength,
            **found.to_json(),
            "refused": found.inapplicable_reason is not None,
            "flagged": bool(found.flags),
            "why": [found.inapplicable_reason] if found.inapplicable_reason else list(found.flags),
            "prefers the model's map": wins(by_judge["own"], by_judge["its"]),
            "model's map beats noise": wins(by_judge["own"], by_judge["noise"]),
            "RFid prefers the model's map": wins(plain["own"], falls(task, other, task.labels, None)),
            "RFid: model's map beats noise": wins(plain["own"], plain["noise"]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=os.environ.get("VERIDICAL_DATA"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--sets", nargs="*")
    args = parser.parse_args()
    with args.out.open("a") as file:
        for name, x, y in tables(None if args.data is None else Path(args.data)):
            for image in (False, True) if name == "digits" else (False,):
                if args.sets and f"{name} {'image' if image else 'columns'}" not in args.sets:
                    continue
                # seeds that no earlier table of judges has used
                for seed in range(100, 100 + args.seeds):
                    for row in study(name, x, y, image, seed, min(args.samples, len(x) // 4)):
                        file.write(json.dumps(row) + "\n")
                        file.flush()


if __name__ == "__main__":
    main()
