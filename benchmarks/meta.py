"""What meta-evaluation costs: `python -m benchmarks.meta [--samples 64]`.

Prints rows, seconds and seconds of the bare evaluations for one metric, K = 3, one iteration, two explainers
(the setting in which the published program was timed: 24 s for 64 samples, 1.6 s of them in the model), then
for a growing number of map metrics, whose shared explanations must not grow.
"""

from __future__ import annotations

import argparse

import torch

import veridical as vd
from benchmarks.metrics import tasks
from benchmarks.timing import Timing, compare, table

EXPLAINERS = ["saliency", "integrated_gradients"]
MAP_METRICS = ["sparseness", "complexity", "effective_complexity", "pixel_flipping"]


def evaluated(task: vd.Task, metrics: list[str]) -> vd.meta.MetaEvaluation:
    """One meta-evaluation at the published strengths."""
    return vd.meta_evaluate(task, metrics, EXPLAINERS, draws=3, iterations=1, ar="published", resamples=0)


def measured(task: vd.Task, metrics: list[str]) -> Timing:
    """Time it against the rows it asked of the model."""

    def work() -> vd.Cost:
        before = task.predictor.meter.cost
        result = evaluated(task, metrics)
        assert result.shared.calls == (1 + 2 * 2 * 3) * len(EXPLAINERS)
        return task.predictor.meter.cost - before

    return compare(f"meta: {', '.join(metrics)}", work, task)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.meta", description=__doc__)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    task = tasks(chosen.device, "lenet", chosen.samples)
    print(f"{task.name}, {len(task)} samples, {torch.get_num_threads()} threads, torch {torch.__version__}")
    sets = [["pixel_flipping"], *(MAP_METRICS[:count] for count in (1, 2, 3, 4))]
    print(table([measured(task, metrics) for metrics in sets]))


if __name__ == "__main__":
    main()
