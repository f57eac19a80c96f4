"""Renew tests/data/golden_scores.json after a metric or explainer changed its scores and its version.

python scripts/renew_golden_scores.py         what is new or changed
python scripts/renew_golden_scores.py --new   only what has no golden scores yet (`make record` does this)

The scores are those of everything registered on three digits, with the versions that gave them.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402 (the path must be set first)

import veridical as vd  # noqa: E402
from veridical.explainers import registry as explainer_registry  # noqa: E402
from veridical.metrics import registry as metric_registry  # noqa: E402

FILE = ROOT / "tests" / "data" / "golden_scores.json"
RENEW = "python scripts/renew_golden_scores.py"
RECORD = "make record"
# they train a model
LEFT_OUT = {"ffid_plus", "ffid_minus"}
SUBJECT = "saliency"


def golden_task() -> vd.Task:
    """Three digits with masks of their ink, so that nearly everything applies."""
    base = vd.tasks.load("digits", samples=3)
    return vd.Task(
        base.model,
        base.inputs,
        labels=base.labels,
        masks=base.inputs > 0.5,
        train=(base.train[:128], base.train_labels[:128]),
        ids=base.ids,
        plan=vd.Plan(rows=64, threads=1),
    )


def current(kind: str, name: str, task: vd.Task) -> dict[str, Any]:
    """What a metric (or explainer) gives now: one number a sample (two of each map), and its version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "metric":
            made: Any = metric_registry.make(name)
            return {"version": made.version, "values": vd.score(made, task, SUBJECT).values.tolist()}
        made = explainer_registry.make(name)
        maps = vd.explain(made, task).values.double()
    turned = maps * torch.arange(maps.shape[1]).cos()
    return {"version": made.version, "values": [*maps.abs().sum(1).tolist(), *turned.sum(1).tolist()]}


def entries(task: vd.Task) -> list[tuple[str, str]]:
    """Everything of ours that applies to the task."""
    found = []
    for kind, registry in (("explainer", explainer_registry), ("metric", metric_registry)):
        for name in registry:
            ours = registry.maker(name).__module__.startswith("veridical.")
            if ours and name not in LEFT_OUT and registry.make(name).inapplicable_reason(task) is None:
                found.append((kind, name))
    return found


def verdict(now: dict[str, Any], golden: dict[str, Any] | None) -> str | None:
    """What is wrong, or None: scores changed, or the version did and nobody wrote the new scores down."""
    if golden is None:
        return f"has no golden scores yet; run {RECORD}"
    if now["version"] != golden["version"]:
        return f"has version {now['version']}, golden scores are of {golden['version']}; run {RENEW}"
    a, b = (torch.tensor(one["values"], dtype=torch.float64) for one in (now, golden))
    if a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=2e-5, equal_nan=True):
        return None
    return (
        f"gives other scores than before and still calls itself version {now['version']}: {a.tolist()} "
        f"instead of {b.tolist()}. If that is meant, raise its version and run {RENEW}; else studies mix "
        "old and new"
    )


def read() -> dict[str, dict[str, Any]]:
    """The golden scores by 'kind/name'."""
    data: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return data


def write(new_only: bool = False) -> list[str]:
    """Write down what is new and, unless told otherwise, what changed; which these are."""
    task = golden_task()
    before = read() if FILE.is_file() else {}
    after, renewed = {}, []
    for name in (f"{kind}/{name}" for kind, name in entries(task)):
        after[name] = before.get(name)
        if after[name] is None or not new_only:
            now = current(*name.split("/"), task)
            # numbers that agree stay as they were written, whichever machine this is
            if verdict(now, after[name]) is not None:
                after[name] = now
                renewed.append(name)
    FILE.write_text(json.dumps(after, indent=1, allow_nan=True) + "\n")
    return renewed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--new", action="store_true", help="leave alone what has golden scores")
    for name in write(new_only=parser.parse_args().new):
        print(f"renewed {name}")
    print(f"written to {FILE.relative_to(ROOT)}")
