"""`python -m benchmarks [--device cuda] [--size lenet|resnet18] [--part NAME ...] [--out FOLDER]`.

Parts: every metric that asks the model, the probe under each kind of mask, every explainer, ten thousand
maps, import time. `--metric` and `--explainer` limit a part to some names. Rows are written as soon as they
are there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks import explainers, import_time, maps, masks, metrics
from benchmarks.results import Results

SIZES = ("lenet", "resnet18")


def time_metrics(results: Results, given: argparse.Namespace) -> None:
    """Every metric at every size asked for."""
    for size in given.size or SIZES:
        task = metrics.tasks(given.device, size, given.samples)
        title = f"{task.name}, {len(task)} samples, {task.predictor.rows} rows a chunk"
        brief = given.device == "cpu"
        for timing in metrics.timings(task, size, given.metric, given.rounds, brief, given.clock):
            results.timing(title, timing)


def time_probe(results: Results, given: argparse.Namespace) -> None:
    """The probe alone, by kind of mask."""
    for size in given.size or SIZES:
        for timing in masks.measure(given.device, size, given.rounds, given.samples):
            results.timing(f"The probe alone, {size}", timing)


def time_explainers(results: Results, given: argparse.Namespace) -> None:
    """Every explainer."""
    for size in given.size or SIZES:
        for timing in explainers.measure(given.device, size, given.explainer, given.rounds, given.samples):
            results.timing(f"Explainers, {size}", timing)


def time_maps(results: Results, given: argparse.Namespace) -> None:
    """Metrics that read maps, on many large ones."""
    count = given.samples or 10_000
    for row in maps.rows(count, 224, given.device):
        results.add(f"{count:,} maps of 224 x 224", **row)


def time_import(results: Results, given: argparse.Namespace) -> None:
    """Importing the package beside importing torch."""
    results.add("Import", **import_time.measure(given.rounds))


PARTS: dict[str, Callable[[Results, argparse.Namespace], None]] = {
    "metrics": time_metrics,
    "probe": time_probe,
    "explainers": time_explainers,
    "maps": time_maps,
    "import": time_import,
}


def main() -> None:
    """Measure, print and, if asked, write the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=list(SIZES), action="append")
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--metric", action="append")
    parser.add_argument("--explainer", action="append")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results = Results(given.out, given.device)
    named = [part for part in ("metrics", "explainers") if getattr(given, part.rstrip("s"))]
    for part in given.part or named or ("metrics", "probe", "explainers", "import"):
        PARTS[part](results, given)
    print(results.markdown())


if __name__ == "__main__":
    main()
