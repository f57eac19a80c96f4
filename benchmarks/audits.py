"""Whole audits: rows by purpose, seconds beside the same rows without anything around them, and peak memory.

    python -m benchmarks.audits --out FOLDER [--cell digits] [--effort quick] [--seeds 0 1] [--device cuda]
                                [--workers 16] [--minutes 8]
    python -m benchmarks.audits --out FOLDER --tables      # from what is there, nothing runs

Every cell runs in a process of its own, so that its peak memory is its own, and is kept as a line of
`audits.jsonl`: a run that was ended goes on with what is missing. With `--workers` several run at once, and
seconds are no measure. `--cell` takes the cells whose name begins so. Cells: tasks
(digits, breast_cancer, boosted trees on eight columns, reviews, MiniLM-sized text, ResNet-50 photos), and
growth with samples, columns, methods and outputs.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import veridical as vd
from benchmarks.networks import resnet50
from benchmarks.results import machine, sentence
from benchmarks.timing import bare
from replications.common import work_off
from veridical.auditing import jobs
from veridical.auditing.measured_effects import measured_effects
from veridical.meta import planted_damage

TIMED_ROWS = 1024
"""Rows of bare evaluations that are timed; more are taken to last as much longer."""
GRADIENTS = ("saliency", "input_x_gradient", "integrated_gradients", "smoothgrad", "gradient_shap")
METHODS = ("integrated_gradients", "deeplift", "occlusion", "kernel_shap")
"""Methods of the cells that grow with something else."""
PURPOSES = {
    "samples": "own",
    "model randomisation": "randomisation",
    "other samples": "other samples",
    "perturbed copy": "nearly the same weights",
    "once more": "nearly the same weights",
}
"""What each piece of work is for, by how its place begins."""


# --- the cells --------------------------------------------------------------------------------------------


def loaded(name: str, samples: int, device: str) -> vd.Task:
    """An embedded task."""
    return vd.tasks.load(name)[:samples].to(device)


def boosted(samples: int, device: str) -> vd.Task:
    """Boosted trees on eight columns, filled with reference rows."""
    from sklearn.datasets import make_classification
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows, labels = make_classification(4000, 8, n_informative=5, random_state=0)
    model = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, random_state=0)
    model.fit(rows[:2000], labels[:2000])
    here = slice(2000, 2000 + samples)
    return vd.Task(model, rows[here], labels=labels[here], train=rows[:2000], name="boosted, 8 columns")


def photos(samples: int, device: str) -> vd.Task:
    """Photo-size inputs, ResNet-50 size with random weights, a grid of 14 x 14 patches."""
    x = torch.randn(samples, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    space = vd.Space.patches((3, 224, 224), 16)
    return vd.Task(resnet50(), x, space=space, name="ResNet-50 size, 224 px").to(device)


def columns(count: int, outputs: int, samples: int, device: str) -> vd.Task:
    """A small network on so many columns, with so many classes."""
    torch.manual_seed(0)
    rows = torch.randn(samples + 400, count)
    model = nn.Sequential(nn.Linear(count, 32), nn.ReLU(), nn.Linear(32, outputs))
    return vd.Task(model, rows[:samples], train=rows[samples:], name=f"{count} columns").to(device)


Cell = tuple[Callable[[int, str], vd.Task], int, tuple[str, ...] | None]
"""How its task is made, of how many samples, and which methods are audited: all by default."""


def cells() -> dict[str, Cell]:
    """All cells by name."""
    digits = partial(loaded, "digits")
    found: dict[str, Cell] = {
        "digits": (digits, 64, None),
        "breast_cancer": (partial(loaded, "breast_cancer"), 64, None),
        "boosted": (boosted, 64, None),
        "reviews": (partial(loaded, "reviews"), 64, None),
        "text": (partial(loaded, "rotten_tomatoes_minilm"), 32, None),
        "photos": (photos, 64, None),
        "gradient photos": (photos, 24, GRADIENTS),
    }
    found |= {f"samples {n}": (digits, n, METHODS) for n in (16, 32, 64, 128, 256)}
    found |= {f"columns {n}": (partial(columns, n, 3), 64, METHODS) for n in (8, 16, 32, 64)}
    found |= {f"outputs {n}": (partial(columns, 16, n), 64, METHODS) for n in (2, 5, 10, 50)}
    most = ("saliency", "input_x_gradient", *METHODS, "lime", "rise")
    return found | {f"methods {n}": (digits, 64, most[:n]) for n in (2, 4, 8)}


# --- one cell ---------------------------------------------------------------------------------------------


@contextmanager
def counted(found: Counter[str]) -> Iterator[None]:
    """Count the rows of each piece of work by purpose."""
    real = jobs.carry_out

    def carry_out(job: jobs.Job, seed: int, memo: Any = None) -> jobs.Done:
        meter = job.scored_on.predictor.meter
        before = meter.cost
        done = real(job, seed, memo)
        taken, made = meter.cost - before, done.explanation
        what = next((words for start, words in PURPOSES.items() if job.place.startswith(start)), "describes")
        if what == "own" and job.explainer.control:
            what = "controls"
        maps = made.cost.forward if job.made is None and made is not None else 0
        found[f"{what}: maps"] += maps
        found[f"{what}: scores"] += taken.forward - maps
        return done

    def around(what: str, function: Callable[..., Any]) -> Any:
        def call(task: vd.Task, *given: Any, **named: Any) -> Any:
            before = task.predictor.meter.cost
            made = function(task, *given, **named)
            found[what] += (task.predictor.meter.cost - before).forward
            return made

        return call

    checks = "veridical.auditing.posthoc_checks.measured_effects"
    with (
        patch("veridical.auditing.jobs.carry_out", carry_out),
        patch("veridical.auditing.run.planted_damage", around("planted damage", planted_damage)),
        patch(checks, around("measured effects", measured_effects)),
    ):
        yield


def measure(name: str, effort: str, seed: int, device: str, threads: int) -> dict[str, Any]:
    """One audit as plain data."""
    torch.set_num_threads(threads)
    make, samples, methods = cells()[name]
    task = make(samples, device)
    _ = task.outputs
    given = None if methods is None else list(methods)
    expected = vd.audit(task, explainers=given, effort=effort, seed=seed, dry_run=True).cost
    rows = Counter[str]()
    wall, busy = time.perf_counter(), time.process_time()
    with counted(rows):
        found = vd.audit(task, explainers=given, effort=effort, seed=seed, progress=False)
    if task.device.type == "cuda":
        torch.cuda.synchronize()
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    cost = sum(found.costs.values(), vd.models.Cost())
    rows["checks, copies and the rest"] = cost.forward - sum(rows.values())
    return {
        "cell": name,
        "effort": effort,
        "seed": seed,
        "samples": found.verdict.samples,
        "forward": cost.forward,
        "backward": cost.backward,
        "expected": expected.forward,
        "purposes": {what: count for what, count in rows.items() if count},
        "seconds": wall,
        "cpu seconds": busy,
        "bare seconds": bare_seconds(task, cost),
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "peak MiB of the GPU": torch.cuda.max_memory_allocated() // 2**20 if device == "cuda" else 0,
        "status": {place.explainer: place.status for place in found.ranking},
        "leading": [place.explainer for place in found.ranking if place.group == 1],
        "machine": machine(device),
    }


def bare_seconds(task: vd.Task, cost: vd.models.Cost) -> float:
    """Seconds of as many rows through the model, forward and backward, from some of them."""
    total = 0.0
    for asked in (vd.models.Cost(cost.forward - cost.backward), vd.models.Cost(cost.backward, cost.backward)):
        if not asked.forward:
            continue
        some = min(asked.forward, TIMED_ROWS if task.predictor.differentiable else 100_000)
        where = task.at_embeddings() if asked.backward else task  # token ids have no gradient
        again = bare(where, vd.models.Cost(some, min(some, asked.backward)))
        again()
        start = time.perf_counter()
        again()
        if task.device.type == "cuda":
            torch.cuda.synchronize()
        total += (time.perf_counter() - start) * asked.forward / some
    return total


# --- tables -----------------------------------------------------------------------------------------------


def tables(found: Sequence[dict[str, Any]]) -> str:
    """Results as Markdown: a row for each cell, the mean over its seeds; rows by purpose; steadiness."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        if "error" not in one:
            by_name.setdefault(f"{one['cell']}, {one['effort']}", []).append(one)
    if not by_name:
        return "Nothing was measured."

    def mean(many: list[dict[str, Any]], what: str) -> float:
        return sum(one[what] for one in many) / len(many)

    head = ["audit", "seeds", "samples", "rows forward", "most", "backward", "expected", "CPU s", "x bare"]
    lines = [*_head([*head, "peak MiB"])]
    for name, many in by_name.items():
        ratio = mean(many, "seconds") / max(1e-9, mean(many, "bare seconds"))
        counts = [f"{mean(many, what):,.0f}" for what in ("samples", "forward", "backward", "expected")]
        counts.insert(2, f"{max(one['forward'] for one in many):,}")
        last = [f"{mean(many, 'cpu seconds'):.1f}", f"{ratio:.1f}", f"{mean(many, 'peak MiB'):,.0f}"]
        lines.append("| " + " | ".join([name, str(len(many)), *counts, *last]) + " |")
    purposes = list(
        dict.fromkeys(what for many in by_name.values() for one in many for what in one["purposes"])
    )
    lines += ["", *_head(["audit", *purposes])]
    for name, many in by_name.items():
        total = sum(one["forward"] for one in many)
        parts = [sum(one["purposes"].get(what, 0) for one in many) / max(1, total) for what in purposes]
        lines.append("| " + " | ".join([name, *(f"{part:.1%}" for part in parts)]) + " |")
    differ = [
        "pairs of seeds",
        "methods",
        "differ in trust, mean",
        "most",
        "opposite words",
        "first-named lead in",
    ]
    lines += ["", *_head(["audit", *differ])]
    for name, many in by_name.items():
        if len(many) > 1:
            lines.append("| " + " | ".join([name, *steadiness(many)]) + " |")
    facts = next(iter(by_name.values()))[0]["machine"]
    return "\n".join([sentence(facts), "", *lines])


def _head(cells: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(cells) + " |", "|" + "---|" * len(cells)]


def steadiness(many: Sequence[dict[str, Any]]) -> list[str]:
    """How audits of other samples' order and draws differ: in whom they trust, and whom they name first."""
    good = ("trusted", "provisional")
    apart, opposite, pairs = [], 0, list(combinations(many, 2))
    for a, b in pairs:
        words = [(a["status"][name], b["status"][name]) for name in set(a["status"]) & set(b["status"])]
        apart.append(sum((one in good) != (other in good) for one, other in words))
        opposite += sum("refuted" in two and bool(set(two) & set(good)) for two in words)
    named = {one["leading"][0] for one in many if one["leading"]}
    holds = min((sum(first in one["leading"] for one in many) for first in named), default=0)
    counts = [len(pairs), len(many[0]["status"]), f"{sum(apart) / len(pairs):.2f}", max(apart), opposite]
    return [*map(str, counts), f"{holds} of {len(many)} ({', '.join(sorted(named))})"]


def work(job: tuple[str, str, int, str, int]) -> dict[str, Any]:
    """One cell, in a process of its own."""
    return measure(*job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", nargs="+", default=[""], help="cells whose name begins so; all by default")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="cells that run at once")
    parser.add_argument("--minutes", type=float, default=1e5, help="after these whatever still runs is ended")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--also", nargs="*", type=Path, default=[], help="audits.jsonl of earlier runs")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    given = parser.parse_args()
    jobs = {
        f"{name}, {given.effort}, {given.device}, seed {seed}": (
            name,
            given.effort,
            seed,
            given.device,
            given.threads,
        )
        for seed in given.seeds
        for name in cells()
        if name.startswith(tuple(given.cell))
    }
    minutes = 0.0 if given.tables else given.minutes
    file = given.out / "audits.jsonl"
    found = work_off(jobs, work, file, given.workers, minutes, given.also, alone=True)
    (given.out / "tables.md").write_text(tables(found) + "\n", encoding="utf-8")
    print(tables(found))


if __name__ == "__main__":
    main()
