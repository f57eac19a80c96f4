"""`python -m benchmarks [--device cuda] [--size lenet|resnet18] [--metric NAME ...] [--out FILE]`."""

from __future__ import annotations

import argparse
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

import veridical as vd
from benchmarks.metrics import measure, tasks
from benchmarks.timing import table


def main() -> None:
    """Measure, print and, if asked, write the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=["lenet", "resnet18"], action="append")
    parser.add_argument("--metric", action="append")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    machine = torch.cuda.get_device_name() if chosen.device != "cpu" else f"{platform.machine()} CPU"
    text = [
        f"Machine: {machine}, {torch.get_num_threads()} threads; torch {torch.__version__}, "
        f"veridical {vd.__version__}, {datetime.now(UTC):%Y-%m-%d}."
    ]
    for size in chosen.size or ["lenet", "resnet18"]:
        task = tasks(chosen.device, size, chosen.samples)
        print(task.name, flush=True)
        timings = measure(chosen.device, size, chosen.metric, chosen.rounds, chosen.samples)
        text += [
            f"\n## {task.name}, {len(task)} samples, {task.predictor.rows} rows a chunk\n",
            table(timings),
        ]
    print("\n".join(text))
    if chosen.out:
        chosen.out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
