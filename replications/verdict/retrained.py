"""Explanations after a retraining: false alarms of `vd.check`, and planted shortcuts that it finds.

    python -m replications.verdict.retrained --out results --workers 16

Small networks of three tasks (digits below and above five, breast_cancer, wine of scikit-learn) are audited,
trained again with other seeds, and trained again on data with a shortcut: a column that tells the class, or
the watermark of known/clever_hans, which stands on half of the digits by chance, and then on those of one
class. Each is checked against the audit, with and without eight retrainings as the null. Beside them stands
what build systems use today on the same maps: the largest population stability index (PSI), the largest
Kolmogorov-Smirnov distance (KS) and change of mean |relevance| of any feature, each at the threshold that has
the false alarms of `vd.check`.
"""

from __future__ import annotations

import argparse
import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import ks_2samp
from sklearn import datasets
from torch import Tensor, nn

import veridical as vd
from veridical.auditing import Baseline
from veridical.data.known_answers import MARK

TASKS = ("digits", "breast_cancer", "wine")
NULLS = 8


def rows_of(name: str) -> tuple[Tensor, Tensor]:
    """Standardised rows in a fixed random order, with their classes; half of the digits have a watermark."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    dice = np.random.default_rng(0)
    order = dice.permutation(len(x))
    x = torch.tensor(((x - x.mean(0)) / np.maximum(x.std(0), 1e-9))[order]).float()
    y = torch.tensor(y[order])
    if name == "digits":
        x, y = x.view(-1, 1, 8, 8), (y > 4).long()
        mark(x, torch.tensor(dice.integers(0, 2, len(x))))
    return x, y


def mark(x: Tensor, where: Tensor) -> None:
    """Put the watermark on these images, and take it off the others."""
    for row, column in MARK:
        x[:, 0, row, column] = 3.0 * where - 1.5


def trained(name: str, seed: int, leak: int | None = None) -> nn.Module:
    """A small network; with `leak` that column of its training rows, or the watermark, tells the class."""
    x, y = rows_of(name)
    x, y = x[: len(x) // 2].clone(), y[: len(y) // 2]
    torch.manual_seed(seed)
    if leak is not None and name == "digits":
        mark(x, y)
    elif leak is not None:
        x[:, leak] = 3.0 * y / int(y.max()) - 1.5 + 0.1 * torch.randn(len(y))
    inputs = x[0].numel()
    net = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, int(y.max()) + 1))
    optimiser = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=1e-3)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net


def as_task(name: str, net: nn.Module) -> vd.Task:
    """The other half of the rows, as they are."""
    x, y = rows_of(name)
    half = len(x) // 2
    return vd.Task(net, x[half:], labels=y[half:], train=(x[:half], y[:half]), name=name)


def distances(before: Tensor, after: Tensor) -> dict[str, float]:
    """The largest distance of any feature's relevance: PSI over ten bins, KS, change of the mean size."""
    found = {"PSI": 0.0, "KS": 0.0, "mean size": 0.0}
    total = float(before.abs().sum(1).mean())
    for a, b in zip(before.T.numpy(), after.T.numpy(), strict=True):
        edges = np.unique(np.quantile(a, np.linspace(0, 1, 11)))[1:-1]
        shares = [
            np.bincount(np.searchsorted(edges, part), minlength=len(edges) + 1) + 0.5 for part in (a, b)
        ]
        p, q = (part / part.sum() for part in shares)
        found["PSI"] = max(found["PSI"], float(((p - q) * np.log(p / q)).sum()))
        found["KS"] = max(found["KS"], float(ks_2samp(a, b).statistic))
        found["mean size"] = max(found["mean size"], abs(float(np.abs(a).mean() - np.abs(b).mean())) / total)
    return found


def one_audit(name: str, number: int, again: int) -> list[dict[str, Any]]:
    """One audited model, its retrainings, and its shortcuts."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    base_seed = 1000 * number
    task = as_task(name, trained(name, base_seed))
    methods = ["integrated_gradients", "input_x_gradient", "kernel_shap"]
    old = Baseline.of(vd.audit(task, explainers=methods, seed=number, progress=False))
    nulls = [trained(name, base_seed + 500 + i) for i in range(NULLS)]
    found, rng = list[dict[str, Any]](), np.random.default_rng(number)
    for i in range(again):
        for leak in (None, int(rng.integers(task.space.n_features))):
            new = as_task(name, trained(name, base_seed + 1 + i, leak))
            results = {}
            for what, others in (("fixed", None), ("null", nulls)):
                check = vd.check(old, new, others=others)
                results[what] = {
                    "status": check.status,
                    "words": [method.status for method in check.methods],
                    "moved": sorted({change.feature for change in check.moved}),
                    "share": check.rows / max(1, check.audit_rows),
                }
            rows, same = old.samples_of(new)
            who = next(iter(old.maps), None)
            apart = (
                {}
                if who is None
                else distances(
                    old.maps[who] if rows is None else old.maps[who][rows],
                    old.made_by[who](same).values.cpu(),
                )
            )
            found.append({"task": name, "audit": number, "leak": leak, **results, "apart": apart})
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """False alarms and finds of every way, by task and in all."""
    out: dict[str, Any] = {}
    for name in (*TASKS, None):
        own = [one for one in found if name in (one["task"], None)]
        clean, leaky = ([one for one in own if (one["leak"] is None) == same] for same in (True, False))
        if not clean or not leaky:
            continue
        row: dict[str, Any] = {"retrainings": len(clean), "shortcuts": len(leaky)}
        for way in ("fixed", "null"):
            alarms = float(np.mean([one[way]["status"] == 1 for one in clean]))
            row[way] = {"false": alarms, "found": float(np.mean([one[way]["status"] == 1 for one in leaky]))}
            row[way]["rows"] = float(np.mean([one[way]["share"] for one in own]))
            for rival in ("PSI", "KS", "mean size"):
                apart = [one["apart"].get(rival, 0.0) for one in clean]
                limit = float(np.quantile(apart, 1 - alarms, method="higher"))
                row[way][rival] = float(np.mean([one["apart"].get(rival, 0.0) > limit for one in leaky]))
        out[name or "all"] = row
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--audits", type=int, default=10, help="audited models per task")
    parser.add_argument(
        "--again", type=int, default=7, help="retrainings of each, and as many with a shortcut"
    )
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    cells = [(name, number, given.again) for name in TASKS for number in range(given.audits)]
    with ProcessPoolExecutor(given.workers) as pool:
        found = list[dict[str, Any]]()
        for part in pool.map(one_audit, *zip(*cells, strict=True)):
            found += part
            words = [f"{one['fixed']['status']}{one['null']['status']}" for one in part]
            print(part[0]["task"], part[0]["audit"], *words, flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    result = {"summary": summary(found), "checks": found}
    (given.out / "retrained.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
