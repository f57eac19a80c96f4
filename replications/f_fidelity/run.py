"""Replicate the F-Fidelity tables: python -m replications.f_fidelity.run cifar --out results.json

Reads $VERIDICAL_DATA. Each stage writes what it found into the JSON file as soon as it has it, the ranking
study after every repeat; a run that was cut short keeps what it had.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import veridical as vd
from replications.f_fidelity import data, sequences
from replications.f_fidelity.case import case_study
from replications.f_fidelity.comparing import compare_explainers
from replications.f_fidelity.preservation import boundary_study, map_agreement
from replications.f_fidelity.roar import ROAR, ROAR_SIZES, roar_study
from replications.f_fidelity.sensitivity import sensitivity
from veridical.explainers.gradients import SmoothGradSquared
from veridical.fidelity import RankingStudy
from veridical.fidelity.metrics import LEVELS
from veridical.fidelity.ranking import PAIRS, default_metrics

STAGES = ("robustness", "boundary", "ranking", "roar", "sensitivity", "explainers", "maps", "case")
PUBLISHED = "smoothgrad_squared_ig"
"""SmoothGrad-squared over integrated gradients, as the published program takes it."""


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


def pooled(studies: Sequence[RankingStudy]) -> RankingStudy:
    """Studies of one repeat each, by their own seeds, as one study of several repeats."""
    first = studies[0]
    falls = {
        name: {sign: torch.cat([study.falls[name][sign] for study in studies]) for sign in found}
        for name, found in first.falls.items()
    }
    resolvable = {
        name: {sign: all(s.resolvable[name][sign] for s in studies) for sign in found}
        for name, found in first.resolvable.items()
    }
    notes = {**first.notes, "repeats": len(studies)}
    return RankingStudy(
        first.ratios,
        first.sizes,
        falls,
        resolvable,
        first.explainer,
        first.rows,
        notes,
    )


def correlations(study: RankingStudy) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, found in study.agreements.items():
        out[name] = {
            pair: {
                "macro": [round(v, 3) for v in found.macro[pair]],
                "micro": [round(v, 3) for v in found.micro[pair]],
                "micro over sizes": [round(v, 3) for v in found.over_sizes[pair]],
                "undefined": found.undefined[pair],
                "micro rank": [round(v, 2) for v in study.ranks[name][pair]],
            }
            for pair in PAIRS
        }
        out[name]["resolvable"] = dict(study.resolvable[name])
        out[name]["falls"] = {
            sign: [[round(v, 5) for v in row] for row in values.mean(0).tolist()]
            for sign, values in study.falls[name].items()
        }
        out[name]["sizes"] = list(study.sizes[name])
        out[name]["areas"] = {
            sign: [[round(float(v), 5) for v in row.mean(-1)] for row in values]
            for sign, values in study.falls[name].items()
        }
    return out


def make_task(which: str, per_class: int, train_rows: int | None, rows: int | None, device: str) -> vd.Task:
    on_gpu = device.startswith("cuda")
    plan = vd.Plan(rows=rows, precision="tf32" if on_gpu else None, channels_last=on_gpu and which == "cifar")
    if which in sequences.NAMES:
        return sequences.make_task(data.folder(), which, per_class, train_rows, plan).to(device)
    if which == "cifar":
        model, (x, y), train = data.resnet20(), data.cifar("test"), data.cifar("train")
    else:
        model, (x, y), train = data.lenet(), data.mnist("test"), data.mnist("train")
    few = data.balanced(train[1], train_rows or 1000)
    train = (train[0][few], train[1][few])
    chosen = data.balanced(y, per_class)
    task = vd.Task(
        model, x[chosen], labels=y[chosen], train=train, ids=chosen, fill="zero", plan=plan, name=which
    )
    return task.to(device)


def explainer_of(name: str) -> Any:
    """An explainer by name; the published SmoothGrad-squared takes integrated gradients under noise."""
    return SmoothGradSquared(8, base="integrated_gradients", steps=16) if name == PUBLISHED else name


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["cifar", "mnist", *sequences.NAMES])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=["robustness", "ranking"])
    parser.add_argument("--per-class", type=int, default=50)
    parser.add_argument("--train-per-class", type=int, help="all by default, of MNIST 1,000")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--rows", type=int, default=None, help="rows a chunk")
    parser.add_argument("--explainer", default="smoothgrad_squared", help=f"a name, or {PUBLISHED}")
    parser.add_argument("--without", nargs="*", default=[], help="metrics left out of the ranking")
    parser.add_argument("--explainers", nargs="+", default=["gradcam", "saliency"])
    parser.add_argument("--cache", type=Path, default=Path(".cache/f_fidelity"))
    parser.add_argument("--roar-epochs", type=int, default=2)
    parser.add_argument("--roar-repeats", type=int, default=1)
    parser.add_argument("--roar-batch", type=int, default=512)
    parser.add_argument("--roar-rate", type=float, default=1e-3)
    parser.add_argument("--roar-start", choices=["fresh", "trained"], default="trained")
    parser.add_argument("--roar-sizes", nargs="+", type=float, default=ROAR_SIZES)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    given = options()
    log = Log(given.out)
    log("settings", {k: str(v) for k, v in vars(given).items() if k not in ("out", "cache")})
    task = make_task(given.which, given.per_class, given.train_per_class, given.rows, given.device)
    right = float((task.predictions == task.labels).double().mean())
    log("task", {"shown": repr(task), "accuracy": right, "rows a chunk": task.predictor.rows})

    settings = {"epochs": given.epochs, "rate": given.rate, "cache": given.cache, "patience": given.epochs}
    began = time.time()
    tuned = vd.fidelity.finetune(task, beta=given.beta, **settings)
    log("fine-tuning", {"seconds": time.time() - began, "shown": repr(tuned), "history": tuned.history})
    judged = task.with_targets(task.labels)
    explainer = explainer_of(given.explainer)
    for stage in given.stages:
        began = time.time()
        for name, found in run_stage(stage, given, judged, tuned, explainer, settings):
            log(name, {"seconds": time.time() - began, **found})
    log("seconds", log.seconds)


def run_stage(
    stage: str, given: argparse.Namespace, task: vd.Task, tuned: Any, explainer: Any, settings: dict[str, Any]
) -> Any:
    """Yield (name, facts) as they come."""
    fidelity = vd.fidelity
    if stage == "robustness":
        yield stage, table(fidelity.robustness_table(task, tuned, cache=given.cache))
    elif stage == "boundary":
        found = boundary_study(task, (0.1, 0.3, 0.5), draws=2, **settings)
        yield stage, {"shown": repr(found).split("\n"), "rows": found.to_frame().to_dict("records")}
    elif stage == "ranking":
        explanation = vd.explain(explainer, task)
        yield "explaining", {"explainer": given.explainer, "cost": str(explanation.cost)}
        began = time.time()
        plus = fidelity.FFid(finetuned=tuned, beta=given.beta, draws=given.draws)(task, explanation)
        yield (
            "one FFid+",
            {"alone": time.time() - began, "evaluations": plus.cost.forward, "mean": plus.mean(True)},
        )
        asked = default_metrics(tuned, LEVELS, given.draws)
        asked = {name: metric for name, metric in asked.items() if name not in given.without}
        studies = []
        for repeat in range(given.repeats):
            studies.append(fidelity.ranking_study(task, explanation, metrics=asked, repeats=1, seed=repeat))
            study = pooled(studies)
            yield (
                stage,
                {"repeats": len(studies), "shown": repr(study).split("\n"), **correlations(study)},
            )
    elif stage == "roar":
        roar = ROAR(
            sizes=tuple(given.roar_sizes),
            epochs=given.roar_epochs,
            rate=given.roar_rate,
            batch=given.roar_batch,
            start=given.roar_start,
        )
        studies = []
        for repeat in range(given.roar_repeats):
            studies.append(roar_study(task, explainer, roar, seed=repeat))
            study = pooled(studies)
            yield stage, {"notes": dict(study.notes), **correlations(study)}
    elif stage == "sensitivity":
        explanation = vd.explain(explainer, task)
        values = {"draws": (50, 20, 10, 100), "betas": (0.05, 0.15, 0.2), "alphas": (0.3, 0.7, 0.9)}
        for which, value in [(name, v) for name, kept in values.items() for v in kept]:
            none = {"draws": (), "betas": (), "alphas": ()}
            found = sensitivity(task, explanation, **{**none, which: (value,)}, **settings)
            yield (
                f"sensitivity to {which} {value}",
                {"shown": repr(found).split("\n"), "rows": found.to_frame().to_dict("records")},
            )
    elif stage == "explainers":
        chosen = [explainer_of(name) for name in given.explainers]
        for same in (False, True):
            found = compare_explainers(
                task,
                chosen,
                finetuned=None if same else tuned,
                on_evaluated=same,
                beta=given.beta,
                draws=given.draws,
                **(settings if same else {}),
            )
            rows = found.to_frame().to_dict("records")
            yield f"explainers, {found.mode}", {"rows": rows, "shown": repr(found).split("\n")}
    elif stage == "case":
        for sample in range(3):
            found = case_study(task, sample, explainer, finetuned=tuned, draws=given.draws)
            rows = {
                name: {sign: v[0].tolist() for sign, v in kept.items()} for name, kept in found.falls.items()
            }
            yield f"case {sample}", {"shown": repr(found).split("\n"), "falls": rows}
    else:
        agree = map_agreement(task, tuned, explainer)
        yield stage, {"rank correlation of maps before and after": float(agree.nanmean())}


if __name__ == "__main__":
    main()
