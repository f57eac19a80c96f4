"""Golden record: every metric on every explainer on six small tasks, and twelve audits with their verdicts.

python -m scripts.goldens --record              write tests/data/goldens.parquet and golden_audits.json
python -m scripts.goldens --check               compute all of it again and list what differs
python -m scripts.goldens --check --tasks text  only some tasks; likewise --metrics, --explainers, --no-audits

The models are written here in plain torch and scikit-learn, so that the record rests on public names alone.
Values must agree to the last bit, except for those of LOOSE (where the arithmetic may change its order): 1e-9
relative in float64, 1e-4 in float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import veridical as vd

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
CELLS, AUDITS = DATA / "goldens.parquet", DATA / "golden_audits.json"

LOOSE_METRICS = ("road",)
"""Metrics whose arithmetic may change its order: ROAD's linear systems."""
LOOSE_EXPLAINERS = ("kernel_shap", "lime")
"""Explainers that solve least squares."""
GEF = ("fast_gef", "gef", "gef_iso")
"""Metrics that explain the model under many weights: asked of a few explainers only."""
FEW = ("gradient", "integrated_gradients", "random", "lrp_epsilon", "occlusion", "kernel_shap")


class Words(nn.Module):
    """A text classifier: embeddings, a hidden layer, a mean over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6, padding_idx=0)
        self.hidden = nn.Linear(6, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        there = (tokens != 0)[..., None]
        mean = (torch.tanh(self.hidden(self.embed(tokens))) * there).sum(1) / there.sum(1)
        return self.out(mean)


def image() -> vd.Task:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 4),
    )
    x = torch.rand(4, 1, 8, 8)
    masks = torch.zeros(4, 1, 8, 8, dtype=torch.bool)
    masks[:, :, 2:5, 2:6] = True
    return vd.Task(model, x, labels=[0, 1, 2, 3], masks=masks, train=torch.rand(12, 1, 8, 8), name="image")


def table() -> vd.Task:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x, train = torch.randn(4, 6).double(), torch.randn(20, 6).double()
    return vd.Task(model, x, labels=[0, 1, 2, 0], train=train, name="table")


def regression() -> vd.Task:
    model = nn.Sequential(nn.Linear(14, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return vd.Task(
        model,
        torch.randn(4, 14).double(),
        train=torch.randn(20, 14).double(),
        head="regression",
        name="regression",
    )


def series() -> vd.Task:
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(16, 3)
    )
    return vd.Task(model, torch.randn(4, 2, 12), train=torch.randn(12, 2, 12), name="series")


def text() -> vd.Task:
    model = Words().double()
    tokens = torch.randint(1, 20, (4, 9))
    tokens[1, 6:] = 0
    space = vd.Space.tokens(9, tokens != 0)
    return vd.Task(model, tokens, space=space, fill=0, train=torch.randint(1, 20, (12, 9)), name="text")


def forest() -> vd.Task:
    from sklearn.ensemble import RandomForestClassifier

    rows = np.random.default_rng(0).normal(size=(80, 5))
    model = RandomForestClassifier(12, max_depth=4, random_state=0).fit(
        rows, rows[:, 0] + rows[:, 1] ** 2 > 0.7
    )
    return vd.Task(model, rows[:4], train=rows[4:40], name="forest")


TASKS: dict[str, Callable[[], vd.Task]] = {
    made.__name__: made for made in (image, table, regression, series, text, forest)
}


def make(name: str) -> vd.Task:
    """One of the tasks, its model and rows drawn from one seed."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TASKS[name]()


def cells(tasks: list[str], metrics: list[str], explainers: list[str]) -> Iterator[dict[str, Any]]:
    """The score of every cell, or the sentence that says why there is none."""
    for name in tasks:
        task = make(name)
        for explainer in explainers:
            try:
                maps = vd.explain(explainer, task, seed=0)
            except vd.errors.VeridicalError:
                continue
            yield _cell(name, explainer, "", maps.values.double().cpu(), {}, maps.cost)
            for metric in metrics:
                if metric in GEF and explainer not in FEW:
                    continue
                try:
                    scores = vd.score(metric, task, explainer, seed=0)
                except Exception as error:
                    if not isinstance(error, vd.errors.VeridicalError):
                        print("raw", name, explainer, metric, repr(error)[:120], file=sys.stderr, flush=True)
                    continue
                yield _cell(name, explainer, metric, scores.values.double().cpu(), scores.flags, scores.cost)


def _cell(
    task: str, explainer: str, metric: str, values: torch.Tensor, flags: Any, cost: Any
) -> dict[str, Any]:
    raised = {flag: torch.as_tensor(where).int().tolist() for flag, where in dict(flags).items()}
    return {
        "task": task,
        "explainer": explainer,
        "metric": metric,
        "values": values.reshape(-1).numpy() if metric else _summary(values),
        "flags": json.dumps({flag: where for flag, where in sorted(raised.items()) if any(where)}),
        "forward": int(cost.forward),
        "backward": int(cost.backward),
    }


def _summary(values: torch.Tensor) -> np.ndarray:
    """Four numbers that any change of a map changes: two weighted sums, the size, the largest."""
    weights = torch.linspace(1, 2, values.shape[-1], dtype=torch.float64)
    return (
        torch.stack(
            [values @ weights, values @ weights.flip(0) ** 2, values.square().sum(-1), values.amax(-1)]
        )
        .reshape(-1)
        .numpy()
    )


AUDITED: dict[str, dict[str, Any]] = {
    "known/linear": {"explainers": ["input_x_gradient", "saliency", "occlusion"], "samples": 32},
    "known/tiers": {"explainers": ["input_x_gradient", "integrated_gradients"], "samples": 24},
    "known/clever_hans": {"explainers": ["gradient", "integrated_gradients"], "samples": 24},
    "known/interactions": {"explainers": ["gradient", "occlusion"], "samples": 24},
    "digits": {"explainers": ["gradient", "integrated_gradients", "occlusion", "deeplift"], "samples": 24},
    "breast_cancer": {
        "explainers": ["input_x_gradient", "integrated_gradients", "kernel_shap"],
        "samples": 24,
    },
    "breast_cancer_logistic": {"explainers": ["input_x_gradient", "lime"], "samples": 32},
    "wine": {"explainers": ["integrated_gradients", "occlusion"], "samples": 24},
    "wine_logistic": {"explainers": ["input_x_gradient", "gradient"], "samples": 24},
    "diabetes": {"explainers": ["integrated_gradients", "saliency"], "samples": 24},
    "reviews": {"explainers": ["input_x_gradient", "occlusion"], "samples": 24},
    "basic_motions_cnn": {"explainers": ["integrated_gradients", "gradient"], "samples": 24},
}


def audits() -> dict[str, Any]:
    """The verdict of each audit: a word and a group per method, and who is best."""
    found: dict[str, Any] = {}
    for name, settings in AUDITED.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = vd.audit(vd.tasks.load(name), effort="quick", seed=0, **settings)
        except vd.errors.VeridicalError as error:
            found[name] = f"{type(error).__name__}"
            print(name, error, file=sys.stderr)
            continue
        found[name] = {
            "best": result.best,
            "places": {place.explainer: f"{place.status}, {place.group}" for place in result.ranking},
        }
        print(name, found[name], file=sys.stderr, flush=True)
    return found


def differing(old: pd.DataFrame, new: pd.DataFrame) -> list[str]:
    """One line for every cell that is not as recorded."""
    place = ["task", "explainer", "metric"]
    was, now = old.set_index(place), new.set_index(place)
    lines = [f"gone: {key}" for key in was.index.difference(now.index)]
    lines += [f"new: {key}" for key in now.index.difference(was.index)]
    for key in was.index.intersection(now.index):
        a, b = was.loc[key], now.loc[key]
        x, y = np.asarray(a["values"]), np.asarray(b["values"])
        loose = key[2] in LOOSE_METRICS or key[1] in LOOSE_EXPLAINERS
        tolerance = (1e-4 if key[0] in ("image", "series") else 1e-9) if loose else 0.0
        if x.shape != y.shape or not np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True):
            lines.append(f"values: {key}: {x[:3]} -> {y[:3]}")
        # the words of a flag may change; which samples are flagged, and how often, may not
        if sorted(json.loads(a["flags"]).values()) != sorted(json.loads(b["flags"]).values()):
            lines.append(f"flags: {key}: {a['flags'][:90]} -> {b['flags'][:90]}")
        if (a["forward"], a["backward"]) != (b["forward"], b["backward"]):
            lines.append(f"cost: {key}: {a['forward']}+{a['backward']} -> {b['forward']}+{b['backward']}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--check", action="store_true")
    for what in ("tasks", "metrics", "explainers"):
        parser.add_argument(f"--{what}", nargs="*", default=None)
    parser.add_argument("--no-audits", action="store_true")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tasks = chosen.tasks or list(TASKS)
    metrics = list(vd.list_metrics()) if chosen.metrics is None else chosen.metrics
    explainers = list(vd.list_explainers()) if chosen.explainers is None else chosen.explainers
    new = pd.DataFrame(cells(tasks, metrics, explainers))
    found = {} if chosen.no_audits else audits()
    if chosen.record:
        new.to_parquet(CELLS)
        AUDITS.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(new)} cells, {len(found)} audits")
        return
    old = pd.read_parquet(CELLS)
    old = old[old.task.isin(tasks) & old.metric.isin([*metrics, ""]) & old.explainer.isin(explainers)]
    lines = differing(old, new)
    recorded = json.loads(AUDITS.read_text())
    lines += [f"audit {n}: {recorded[n]} -> {made}" for n, made in found.items() if recorded[n] != made]
    print("\n".join(lines) or f"{len(new)} cells and {len(found)} audits as recorded")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
