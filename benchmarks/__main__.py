"""`python -m benchmarks [--device cuda] [--size lenet|resnet18] [--part NAME ...] [--out FILE]`.

Three parts: the probe under each kind of mask, every metric that asks the model, every explainer. `--metric`
and `--explainer` limit a part to some names.
"""

from __future__ import annotations

import argparse
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

import veridical as vd
from benchmarks import explainers, masks, metrics
from benchmarks.timing import Timing, table

PARTS = ("probe", "metrics", "explainers")


def timed(part: str, size: str, chosen: argparse.Namespace) -> list[Timing]:
    """The timings of one part."""
    if part == "probe":
        return masks.measure(chosen.device, size, chosen.rounds, chosen.samples)
    module, names = (metrics, chosen.metric) if part == "metrics" else (explainers, chosen.explainer)
    return module.measure(chosen.device, size, names, chosen.rounds, chosen.samples)


def main() -> None:
    """Measure, print and, if asked, write the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=["lenet", "resnet18"], action="append")
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--metric", action="append")
    parser.add_argument("--explainer", action="append")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    machine = torch.cuda.get_device_name() if chosen.device != "cpu" else f"{platform.machine()} CPU"
    text = [
        f"Machine: {machine}, {torch.get_num_threads()} threads; torch {torch.__version__}, "
        f"veridical {vd.__version__}, {datetime.now(UTC):%Y-%m-%d}."
    ]
    named = [part for part in PARTS if getattr(chosen, part.rstrip("s"), None)]
    for size in chosen.size or ["lenet", "resnet18"]:
        task = metrics.tasks(chosen.device, size, chosen.samples)
        print(task.name, flush=True)
        text.append(f"\n## {task.name}, {len(task)} samples, {task.predictor.rows} rows a chunk\n")
        for part in chosen.part or named or PARTS:
            text += [f"### {part.capitalize()}\n", table(timed(part, size, chosen)), ""]
    print("\n".join(text))
    if chosen.out:
        chosen.out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
