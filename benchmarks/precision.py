"""What TF32 does to scores, beside their sampling error, and what it saves.

python -m benchmarks.precision [--device cuda] [--samples 64]

Every score is computed twice on a network of ResNet-18 size: as torch multiplies by default, and in IEEE
float32. Printed are both means, the half-width of the mean's interval, the mean and largest difference of a
sample's score, and both times.
"""

from __future__ import annotations

import argparse

import torch

import veridical as vd
from benchmarks.metrics import settings, tasks
from benchmarks.timing import seconds
from veridical.metrics import ExplainerMetric, registry

METRICS = (
    "pixel_flipping",
    "faithfulness_correlation",
    "max_sensitivity",
    "mprt",
    "fast_gef",
    "deletion",
    "road",
)


def main() -> None:
    """Print one row per metric."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, default=64)
    given = parser.parse_args()
    default = tasks(given.device, "resnet18", given.samples)
    exact = default.with_plan(vd.Plan(rows=default.predictor.rows, precision="float32"))
    print(
        "metric | default | float32 | half interval | mean |difference| | largest | seconds | seconds float32"
    )
    for name in METRICS:
        metric = registry.make(name, **settings("resnet18").get(name, {}))
        found, times = [], []
        for task in (default, exact):
            subject = "gradient" if isinstance(metric, ExplainerMetric) else vd.explain("gradient", task)

            def score(task: vd.Task = task, subject: object = subject) -> torch.Tensor:
                return vd.score(metric, task, subject).values.cpu()  # noqa: B023 (used at once)

            found.append(score())
            times.append(seconds(score, task.device))
        low, high = vd.functional.bootstrap_interval(found[1])
        apart = (found[0] - found[1]).abs()
        print(
            f"{name} | {found[0].nanmean():.4f} | {found[1].nanmean():.4f} | {float(high - low) / 2:.4f} | "
            f"{apart.nanmean():.5f} | {apart.nan_to_num().max():.4f} | {times[0]:.2f} | {times[1]:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
