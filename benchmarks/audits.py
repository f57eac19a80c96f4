"""Whole audits: masks, rows, seconds, and seconds of the same rows without anything around them.

python -m benchmarks.audits [--case text boosted resnet50] [--device cuda] [--threads 2] [--out FOLDER]

`text`: 32 film snippets read by MiniLM (`--minilm FILE` as `python -m replications.gef.minilm --prepare`
wrote it, else the packages of the extra `text`). `boosted`: 64 rows of 8 columns. `resnet50`: random weights,
which cost the same as learnt ones. Bare evaluations are timed on a share of the rows in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import veridical as vd
from benchmarks.networks import resnet50
from benchmarks.results import Results
from benchmarks.timing import bare

TIMED_ROWS = 1024
"""Rows of bare evaluations that are timed; more are taken to last as much longer."""


def text(given: argparse.Namespace, samples: int) -> vd.Task:
    """Film snippets and MiniLM with a linear head."""
    if given.minilm is None:
        return vd.tasks.load("rotten_tomatoes_minilm", samples=samples)
    from replications.gef.minilm import minilm_task

    return minilm_task(given.minilm)[:samples]


def boosted(given: argparse.Namespace, samples: int) -> vd.Task:
    """Boosted trees on eight columns, filled with 100 reference rows."""
    from sklearn.datasets import make_classification
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows, labels = make_classification(4000, 8, n_informative=5, random_state=0)
    model = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, random_state=0)
    model.fit(rows[:2000], labels[:2000])
    here = slice(2000, 2000 + samples)
    return vd.Task(model, rows[here], labels=labels[here], train=rows[:2000], name="boosted, 8 columns")


def photos(given: argparse.Namespace, samples: int) -> vd.Task:
    """Photo-size inputs, ResNet-50 size, a grid of 14 x 14 patches."""
    x = torch.randn(samples, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    space = vd.Space.patches((3, 224, 224), 16)
    return vd.Task(resnet50(), x, space=space, name="ResNet-50 size, 224 px").to(given.device)


@dataclass(frozen=True)
class Case:
    """One table."""

    make: Callable[[argparse.Namespace, int], vd.Task]
    runs: tuple[tuple[str, int], ...]
    """Effort and samples of each audit."""


CASES = {
    "text": Case(text, (("quick", 32),)),
    "boosted": Case(boosted, (("quick", 64), ("standard", 64))),
    "resnet50": Case(photos, (("quick", 16), ("quick", 24), ("standard", 16), ("standard", 64))),
}


def measure(results: Results, name: str, task: vd.Task, effort: str) -> None:
    """One audit with its stages, and its bare evaluations."""
    _ = task.outputs
    wall, busy = time.perf_counter(), time.process_time()
    found = vd.audit(task, effort=effort, concepts=(), progress=False)
    if task.device.type == "cuda":
        torch.cuda.synchronize()
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    cost = sum(found.costs.values(), vd.models.Cost())
    once = bare_seconds(task, cost)
    title = f"{name}, {len(task)} samples, {effort}"
    stages: dict[str, tuple[float, vd.models.Cost]] = {
        stage: (seconds, found.costs[stage]) for stage, seconds in found.seconds.items()
    }
    for stage, (seconds, asked) in stages.items():
        if asked.forward or seconds > 0.5:
            results.add(f"Stages: {title}", **_row(stage, asked, seconds))
    results.add(
        "Audits",
        **_row(title, cost, wall),
        **{
            "masks": cost.forward // max(1, task.fill.repeats_on(task)),
            "cpu seconds": busy,
            "bare seconds": once,
            "ratio": round(wall / once, 2) if once else 0.0,
            "methods": len(found.ranking),
            "left out": sum("budget" in why for why in found.skipped_explainers.values()),
            "answer": found.sentences[0][:60],
        },
    )


def _row(what: str, cost: vd.models.Cost, seconds: float) -> dict[str, Any]:
    rows = {"rows forward": cost.forward, "rows backward": cost.backward}
    return {"what": what, **rows, "seconds": seconds}


def bare_seconds(task: vd.Task, cost: vd.models.Cost) -> float:
    """Seconds of as many rows through the model, forward and backward, from some of them."""
    total = 0.0
    for asked in (vd.models.Cost(cost.forward - cost.backward), vd.models.Cost(cost.backward, cost.backward)):
        if not asked.forward:
            continue
        some = min(asked.forward, TIMED_ROWS if task.predictor.differentiable else 100_000)
        where = task.at_embeddings() if asked.backward else task  # token ids have no gradient
        run = bare(where, vd.models.Cost(some, min(some, asked.backward)))
        run()
        start = time.perf_counter()
        run()
        if task.device.type == "cuda":
            torch.cuda.synchronize()
        total += (time.perf_counter() - start) * asked.forward / some
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--effort", help="this effort alone")
    parser.add_argument("--samples", type=int, help="so many samples in each audit")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minilm", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    results = Results(given.out, given.device)
    for name in given.case:
        case = CASES[name]
        # the same audit once, where `--samples` makes two of them one
        for effort, samples in dict.fromkeys((effort, given.samples or count) for effort, count in case.runs):
            if given.effort in (None, effort):
                measure(results, name, case.make(given, samples), effort)
    print(results.markdown())


if __name__ == "__main__":
    main()
