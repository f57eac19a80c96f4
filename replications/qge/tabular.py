"""Section 4.1.a and 4.1.c: all rankings of Avila (10 features) and of 9 wine features, five models each.

    python -m replications.qge.tabular --data $VERIDICAL_DATA --out results

Avila comes from https://doi.org/10.24432/C5K02X (avila-tr.txt and avila-ts.txt in a folder `avila`); the
9-feature set is the first nine columns of scikit-learn's wine, in place of Glass.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import veridical as vd
from replications.qge.models import VARIANTS, Table, accuracy, chosen_inputs, fitted

PAPER = {
    "avila": {
        "mlp": (0.99, 0.191, 0.198, 0.173),
        "ood-mean": (0.80, 0.080, 0.288, 0.245),
        "ood-zeros": (0.80, 0.085, 0.247, 0.213),
        "undertrained": (0.75, 0.105, 0.315, 0.257),
        "untrained": (0.05, 0.001, 0.434, 0.298),
    },
    "wine9": {
        "mlp": (0.77, 0.198, 0.241, 0.204),
        "ood-mean": (0.63, 0.070, 0.314, 0.262),
        "ood-zeros": (0.63, 0.052, 0.267, 0.230),
        "undertrained": (0.60, 0.168, 0.191, 0.184),
        "untrained": (0.23, 0.007, 0.173, 0.163),
    },
}
"""Accuracy, sigma(q), delta tau, delta rho of Table 2 (Glass for the 9-feature set)."""


def avila(folder: Path) -> Table:
    parts = []
    for name in ("avila-tr.txt", "avila-ts.txt"):
        rows = [line.split(",") for line in (folder / "avila" / name).read_text().split()]
        rows = [row for row in rows if len(row) == 11 and row[0][0] in "-0123456789"]
        x = torch.tensor(np.array([row[:10] for row in rows], dtype=np.float64)).float()
        y = torch.tensor(["ABCDEFGHIWXY".index(row[10]) for row in rows])
        parts += [x, y]
    return Table("avila", *parts)


def wine9(seed: int = 0) -> Table:
    from sklearn.datasets import load_wine
    from sklearn.model_selection import train_test_split

    x, y = load_wine(return_X_y=True)
    x = x[:, :9]
    train, test, a, b = train_test_split(x, y, test_size=0.4, random_state=seed, stratify=y)
    mean, std = train.mean(0), train.std(0)
    train, test = ((part - mean) / std for part in (train, test))
    as_float = [torch.tensor(part).float() for part in (train, test)]
    return Table("wine9", as_float[0], torch.tensor(a), as_float[1], torch.tensor(b))


@dataclass(frozen=True)
class Setup:
    """How a table is studied."""

    width: int
    epochs: int
    inputs: int
    draws: int
    models: tuple[str, ...]
    out: Path


def study(table: Table, setup: Setup) -> list[dict]:
    results = []
    full, trained_rows = 1.0, torch.arange(0)
    for variant in VARIANTS:
        if variant != "mlp" and variant not in setup.models:
            continue
        net = fitted(table, variant, width=setup.width, epochs=setup.epochs, full_accuracy=full)
        rows = chosen_inputs(net, table, setup.inputs)
        if variant == "mlp":
            full, trained_rows = accuracy(net, table), rows
            print(f"{table.name}: test accuracy {full:.4f}", flush=True)
        if variant not in setup.models:
            continue
        # a model without confidence (untrained) is asked about the inputs of the trained one
        rows = rows if len(rows) == setup.inputs else trained_rows
        fill = "mean" if variant == "ood-mean" else 0.0
        task = vd.Task(
            net,
            table.test[rows],
            targets=table.test_labels[rows],
            train=table.train,
            fill=fill,
            ids=rows,
            name=f"{table.name} {variant}",
        )
        start = time.time()
        found = vd.qge.exhaustive_study(task, draws=setup.draws if variant == "mlp" else 1, progress=False)
        row = {
            "set": table.name,
            "model": variant,
            "accuracy": accuracy(net, table),
            "inputs": rows.tolist(),
            "spread": found.spread.mean().item(),
            "tau": found.tau.tolist(),
            "rho": found.rho.tolist(),
            "stratum_tau": found.stratum_tau.tolist(),
            "gain_tau": [found.gain_tau.mean().item(), found.gain_tau.std(correction=0).item()],
            "gain_rho": [found.gain_rho.mean().item(), found.gain_rho.std(correction=0).item()],
            "evaluations": found.cost.forward,
            "seconds": time.time() - start,
            "paper": PAPER[table.name][variant],
        }
        results.append(row)
        print(
            json.dumps({k: v for k, v in row.items() if k not in ("rho", "stratum_tau", "inputs")}),
            flush=True,
        )
        if variant in ("mlp", "ood-mean", "untrained"):
            pictures(found, setup.out / f"{table.name}-{variant}", variant == "mlp")
    return results


def pictures(found: vd.qge.RankingStudy, stem: Path, full: bool) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawings = {"figure6": lambda: found.plot_distribution(of="quality")}
    if full:
        drawings |= {
            "figure2": lambda: found.plot(),
            "figure3": lambda: found.plot_strata(),
            "figure4": lambda: found.plot_distribution(),
            "figure5": lambda: found.plot(rho=True),
        }
    for name, draw in drawings.items():
        ax = draw()
        ax.figure.savefig(f"{stem}-{name}.png", dpi=110)
        pyplot.close(ax.figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("VERIDICAL_DATA"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--set", choices=("avila", "wine9", "both"), default="both")
    parser.add_argument("--inputs", type=int, default=5)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--models", nargs="*", choices=VARIANTS, default=VARIANTS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results = []
    common = (args.inputs, args.draws, tuple(args.models), args.out)
    if args.set in ("wine9", "both"):
        results += study(wine9(), Setup(32, 400, *common))
    if args.set in ("avila", "both"):
        if args.data is None:
            parser.error("Avila needs --data or VERIDICAL_DATA")
        results += study(avila(Path(args.data)), Setup(256, 200, *common))
    (args.out / "tabular.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
