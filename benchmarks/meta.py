"""What meta-evaluation costs: `python -m benchmarks.meta [--samples 64] [--rounds 3]`.

Prints rows, seconds and seconds of the bare evaluations for one metric, K = 3, one iteration, two explainers
(the setting in which the published program was timed: 24 s for 64 samples, 1.6 s of them in the model), then
for more map metrics, whose shared explanations must not grow. 16 samples and one round unless asked for more,
so that it ends in seconds.
"""

from __future__ import annotations

import argparse

import torch

import veridical as vd
from benchmarks.metrics import tasks
from benchmarks.timing import Timing, compare, table
from veridical.metrics import Complexity, EffectiveComplexity, Metric, PixelFlipping, Sparseness

EXPLAINERS = ["saliency", "integrated_gradients"]
FLIPPING = PixelFlipping(per_step=28)
MAP_METRICS = [FLIPPING, Sparseness(), Complexity(), EffectiveComplexity()]


def evaluated(task: vd.Task, metrics: list[Metric]) -> vd.meta.MetaEvaluation:
    """One meta-evaluation at the published strengths."""
    return vd.meta_evaluate(task, metrics, EXPLAINERS, draws=3, iterations=1, ar="published", resamples=0)


def measured(task: vd.Task, metrics: list[Metric], rounds: int) -> Timing:
    """Time it against the rows it asked of the model."""

    def work() -> vd.Cost:
        before = task.predictor.meter.cost
        result = evaluated(task, metrics)
        assert result.shared.calls == (1 + 2 * 2 * 3) * len(EXPLAINERS)
        return task.predictor.meter.cost - before

    return compare(f"meta: {', '.join(metric.name for metric in metrics)}", work, task, rounds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.meta", description=__doc__)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=1)
    chosen = parser.parse_args()
    task = tasks(chosen.device, "lenet", chosen.samples)
    print(f"{task.name}, {len(task)} samples, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(table([measured(task, MAP_METRICS[:count], chosen.rounds) for count in (1, 4)]))


if __name__ == "__main__":
    main()
