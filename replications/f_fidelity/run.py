"""Replicate the F-Fidelity tables: python replications/f_fidelity/run.py cifar --out results.json

Reads $VERIDICAL_DATA. Each stage writes what it found into the JSON file as soon as it has it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import data

import veridical as vd
from veridical.fidelity.correlations import PAIRS


class Log:
    """Collects results in one JSON file and prints them."""

    def __init__(self, path: Path) -> None:
        self.path, self.begun = path, time.time()
        self.found: dict[str, Any] = {}

    def __call__(self, name: str, value: Any) -> None:
        self.found[name] = value
        self.path.write_text(json.dumps(self.found, indent=1))
        print(f"[{time.time() - self.begun:6.1f} s] {name}: {str(value)[:1500]}", flush=True)

    @property
    def seconds(self) -> float:
        return time.time() - self.begun


def table(found: vd.fidelity.RobustnessTable) -> dict[str, Any]:
    return {
        "masked": found.shares,
        "accuracy": {k: [round(100 * v, 2) for v in row] for k, row in found.accuracy.items()},
        "agreement": {k: [round(100 * v, 2) for v in row] for k, row in found.agreement.items()},
        "advice": found.advice,
    }


def correlations(study: vd.fidelity.RankingStudy) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, found in study.agreements.items():
        out[name] = {
            pair: {
                "macro": [round(v, 3) for v in found.macro[pair]],
                "micro": [round(v, 3) for v in found.micro[pair]],
                "undefined": found.undefined[pair],
                "micro rank": [round(v, 2) for v in study.ranks[name][pair]],
            }
            for pair in PAIRS
        }
        out[name]["resolvable"] = dict(study.resolvable[name])
        out[name]["areas"] = {
            sign: [[round(float(v), 5) for v in row.mean(-1)] for row in values]
            for sign, values in study.falls[name].items()
        }
    return out


def make_task(which: str, per_class: int, rows: int | None, device: str) -> vd.Task:
    if which == "cifar":
        model, (x, y), train = data.resnet20(), data.cifar("test"), data.cifar("train")
    else:
        model, (x, y), train = data.lenet(), data.mnist("test"), data.mnist("train")
        few = data.balanced(train[1], 1000)
        train = (train[0][few], train[1][few])
    chosen = data.balanced(y, per_class)
    plan = vd.Plan(rows=rows, tf32=device == "cuda")
    task = vd.Task(
        model, x[chosen], labels=y[chosen], train=train, ids=chosen, fill="zero", plan=plan, name=which
    )
    return task.to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["cifar", "mnist"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-class", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5, help="0 leaves the ranking study out")
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--rows", type=int, default=None, help="rows a chunk")
    parser.add_argument("--explainer", default="smoothgrad_squared")
    parser.add_argument("--cache", type=Path, default=Path(".cache/f_fidelity"))
    parser.add_argument("--roar-epochs", type=int, default=0, help="0 leaves ROAR out")
    parser.add_argument("--roar-repeats", type=int, default=1)
    parser.add_argument("--roar-batch", type=int, default=256)
    parser.add_argument("--sensitivity", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    log = Log(given.out)
    log("settings", {k: str(v) for k, v in vars(given).items()})
    task = make_task(given.which, given.per_class, given.rows, given.device)
    right = float((task.predictions == task.labels).double().mean())
    log("task", {"shown": repr(task), "accuracy": right, "rows a chunk": task.predictor.rows})

    settings = {"epochs": given.epochs, "rate": given.rate, "cache": given.cache, "patience": given.epochs}
    began = time.time()
    tuned = vd.fidelity.finetune(task, **settings)
    log("fine-tuning", {"seconds": time.time() - began, "shown": repr(tuned), "history": tuned.history})
    control = vd.fidelity.finetune(task, masks=False, **settings)
    log("robustness", table(vd.fidelity.robustness_table(task, tuned, control)))

    began = time.time()
    judged = task.with_targets(task.labels)
    explanation = vd.explain(given.explainer, judged)
    log("explaining", {"seconds": time.time() - began, "cost": str(explanation.cost)})
    began = time.time()
    plus = vd.fidelity.FFid(finetuned=tuned, draws=given.draws)(judged, explanation)
    if given.device == "cuda":
        torch.cuda.synchronize()
    log("one FFid+", {"seconds": time.time() - began, "evaluations": plus.cost.forward, "mean": plus.mean()})
    if given.repeats:
        began = time.time()
        study = vd.fidelity.ranking_study(
            task, explanation, finetuned=tuned, repeats=given.repeats, draws=given.draws, cache=given.cache
        )
        log(
            "ranking",
            {"seconds": time.time() - began, "shown": repr(study).split("\n"), **correlations(study)},
        )
    if given.roar_epochs:
        began = time.time()
        roar = vd.fidelity.ROAR(epochs=given.roar_epochs, batch=given.roar_batch, start="trained")
        study = vd.fidelity.ranking_study(
            task, given.explainer, metrics={}, roar=roar, repeats=given.roar_repeats, cache=given.cache
        )
        log("roar", {"seconds": time.time() - began, "notes": dict(study.notes), **correlations(study)})
    if given.sensitivity:
        for name, value in [("draws", 5), ("draws", 10), ("draws", 100), ("alpha", 0.3), ("alpha", 0.8)]:
            metric = vd.fidelity.FFid(**{"finetuned": tuned, "draws": given.draws, name: value})
            study = vd.fidelity.ranking_study(task, explanation, metrics={"FFid": metric}, repeats=1)
            log(f"sensitivity {name} {value}", correlations(study)["FFid"])
    log("seconds", log.seconds)


if __name__ == "__main__":
    main()
