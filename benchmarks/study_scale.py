"""A million maps in shards: does memory stay flat, and does planning grow in step with the cells?

    python -m benchmarks.study_scale [--samples 1000000]

Rows are simulated: each follows from its number alone, so no shard needs another and nothing is loaded whole.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

import veridical as vd
from veridical import study
from veridical.core import key as keyed
from veridical.study.plan import make_plan
from veridical.study.study_file import read_study

FEATURES = 16


def maps(start: int, stop: int) -> vd.Task:
    """Rows [start, stop) of a set that has no end, and a fixed linear model."""
    model = nn.Linear(FEATURES, 4)
    with torch.no_grad():
        model.weight.copy_(torch.arange(4.0 * FEATURES).reshape(4, FEATURES) % 7 - 3)
        model.bias.zero_()
    rows = keyed.normal(vd.core.Key(0) / "a million", torch.arange(start, stop), 0, FEATURES)
    return vd.Task(model, rows, ids=torch.arange(start, stop), name="simulated")


def spec(samples: int, shard_size: int) -> dict[str, object]:
    """The study: one explainer and two metrics on every row."""
    return {
        "name": "scale",
        "tasks": [{"code": "benchmarks.study_scale:maps", "samples": samples}],
        "explainers": ["input_x_gradient"],
        "metrics": ["sparseness", "complexity"],
        "shard_size": shard_size,
        "plan": {"rows": 4096},
        "keep_explanations": False,
    }


def one(samples: int, shard_size: int) -> None:
    """Run the study in this process and say what it took."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = study.run(spec(samples, shard_size), folder, executor="in-process", allow_code=True)
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        scores = done.frame()
        count, mean = len(scores), float(scores.value[scores.metric == "sparseness"].mean())
        state = done.status()
        print(json.dumps({"cells": state.cells, "rows": count, "s": seconds, "mib": peak, "mean": mean}))


def main() -> None:
    """Print a table: samples, cells, seconds, peak memory; then the plan alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--shard-size", type=int, default=20_000)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(given.samples, given.shard_size)
        return
    print(f"{'samples':>9} {'cells':>6} {'scores':>9} {'seconds':>8} {'peak MiB':>9} {'mean gini':>10}")
    for samples in (given.samples // 10, given.samples):
        # a process each, since the peak of a process never falls
        call = [sys.executable, "-m", "benchmarks.study_scale", "--one", "--samples", str(samples)]
        answer = subprocess.run(
            [*call, "--shard-size", str(given.shard_size)], capture_output=True, check=True
        )
        f = json.loads(answer.stdout)
        print(
            f"{samples:>9} {f['cells']:>6} {f['rows']:>9} {f['s']:>8.1f} {f['mib']:>9.0f} {f['mean']:>10.5f}"
        )
    print(f"\n{'plan cells':>10} {'seconds':>8} {'us a cell':>9} {'plan.json bytes':>16}")
    for shard_size in (2000, 200, 20):
        plan = make_plan(read_study(spec(given.samples, shard_size)), allow_code=True)
        began = time.process_time()
        cells = sum(1 for _ in plan.cells())
        spent = time.process_time() - began
        print(f"{cells:>10} {spent:>8.2f} {spent / cells * 1e6:>9.1f} {len(plan.model_dump_json()):>16}")


if __name__ == "__main__":
    main()
