"""Memory over many audits, scores, tasks and cells: what a process holds must not grow with what it has done.

    python scripts/memory.py --audits 300 --rounds 300

Each round works on a task and model of its own, made anew. Resident memory alone wanders with the allocator,
so tensors and objects that are still alive are counted too: those of a leak grow with the rounds, one by one.
Status 1 says that something grew.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

import veridical as vd  # noqa: E402
from veridical.auditing.effort import effort_of  # noqa: E402

READINGS = 12
MORE_MIB = 8.0
"""How far the peak of the second half may lie above that of the first: the allocator's own wandering."""


def resident_mib() -> float:
    """Memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def table(seed: int) -> vd.Task:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    rows = torch.randn(48, 12)
    return vd.Task(model, rows[:16], train=(rows, torch.arange(48) % 3))


def pictures(seed: int) -> vd.Task:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    ).eval()
    rows = torch.randn(32, 1, 12, 12)
    return vd.Task(model, rows[:12], train=(rows, torch.arange(32) % 3))


def one_audit(number: int) -> None:
    """Every sixth a glance as it is, with concepts and meta-evaluation; the others with few draws."""
    task = (table, pictures)[number % 2](number)
    if number % 6 == 0:
        vd.audit(
            task, explainers=["gradient", "saliency", "random"], effort="glance", samples=8, progress=False
        )
        return
    few = {"gef_draws": 0, "search_draws": 2, "removal_draws": 2, "flip_steps": 3, "subset_runs": 6}
    effort = replace(effort_of("glance", task), **few, noise_draws=1)
    vd.audit(task, explainers=["gradient", "random"], effort=effort, samples=4, concepts=(), progress=False)


def one_score(number: int) -> None:
    task = (table, pictures)[number % 2](number)
    for metric in (
        "sparseness",
        "pixel_flipping",
        "faithfulness_correlation",
        "max_sensitivity",
        "rfid_plus",
    ):
        vd.score(metric, task, "integrated_gradients", seed=number)


def one_task(number: int) -> None:
    for name in ("known/linear", "breast_cancer", "digits"):
        task = vd.tasks.load(name, 8, number)
        vd.explain("gradient", task)


def one_study(number: int) -> None:
    from veridical import study

    with tempfile.TemporaryDirectory() as where:
        study.run(
            {
                "tasks": [{"name": "known/linear", "samples": 4}],
                "explainers": ["gradient"],
                "metrics": ["sparseness", "pixel_flipping"],
                "seeds": [number],
                "plan": {"rows": 8, "threads": 1},
            },
            where,
            executor="in-process",
            progress=False,
        )


def reading() -> dict[str, float]:
    """What this process holds now, after everything that nobody points at has gone."""
    gc.collect()
    alive = gc.get_objects()
    tensors = sum(isinstance(one, torch.Tensor) for one in alive if type(one).__module__ != "weakref")
    return {"mib": round(resident_mib(), 1), "tensors": tensors, "objects": len(alive)}


def slope(values: list[float], each: float) -> float:
    """Growth per round over the second half of the readings: caches have filled in the first."""
    late = values[len(values) // 2 :]
    middle, mean = (len(late) - 1) / 2, sum(late) / len(late)
    over = sum((at - middle) ** 2 for at in range(len(late)))
    return sum((at - middle) * (value - mean) for at, value in enumerate(late)) / over / each


def measure(what: str, work: Callable[[int], None], rounds: int) -> dict[str, Any]:
    each = max(1, rounds // READINGS)
    began, found, kinds = time.process_time(), [], Counter[str]()
    for number in range(rounds):
        work(number)
        if (number + 1) % each == 0:
            found.append(reading())
            if number + 1 == (rounds // (2 * each)) * each:
                kinds = Counter(type(one).__qualname__ for one in gc.get_objects())
    grown = Counter(type(one).__qualname__ for one in gc.get_objects())
    grown.subtract(kinds)
    growth = {name: slope([one[name] for one in found], each) for name in found[0]}
    mib, half = [one["mib"] for one in found], len(found) // 2
    risen = max(mib[half:]) - max(mib[:half])
    table_row = {
        "what": what,
        "rounds": rounds,
        "cpu_s": round(time.process_time() - began),
        "first": found[0],
        "last": found[-1],
        "per_round": {name: round(value, 4) for name, value in growth.items()},
        "flat": risen < MORE_MIB and growth["tensors"] < 0.1 and growth["objects"] < 5,
        "grown_kinds": dict(grown.most_common(6)),
        "readings": mib,
    }
    print(json.dumps(table_row), flush=True)
    return table_row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--only", nargs="+", choices=["audits", "scores", "tasks", "studies"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    works = {
        "scores": (one_score, given.rounds),
        "tasks": (one_task, given.rounds),
        "studies": (one_study, given.rounds),
        "audits": (one_audit, given.audits),
    }
    made = [measure(what, *works[what]) for what in works if not given.only or what in given.only]
    if given.out is not None:
        given.out.write_text(json.dumps(made, indent=1) + "\n")
    return int(not all(row["flat"] for row in made))


if __name__ == "__main__":
    sys.exit(main())
