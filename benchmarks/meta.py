"""What meta-evaluation costs: `python -m benchmarks.meta [--samples 64] [--rounds 3] [--peer FOLDER]`.

The table that the published program was timed on: pixel flipping, K = 3 draws, one iteration, two explainers
(64 samples took it 24 s on two cores, 1.6 s of them in the model). Rows asked, seconds, seconds of the bare
evaluations and their ratio; then with more map metrics, whose shared explanations must not grow. `--peer`:
MetaQuantus itself runs the same table in turn (`benchmarks/meta_peer.py`). 16 samples and one round unless
asked for more, so that it ends in seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

import veridical as vd
from benchmarks.meta_peer import peer_seconds
from benchmarks.metrics import tasks
from benchmarks.timing import Timing, compare, table
from veridical.explainers import IntegratedGradients
from veridical.metrics import Complexity, EffectiveComplexity, Metric, PixelFlipping, Sparseness

PER_STEP, DRAWS = 56, 3
EXPLAINERS = ["saliency", IntegratedGradients(steps=10, rule="trapezoid")]
"""Steps of 2 x 28 features and the explainers as the program sets them."""
MAP_METRICS = [
    PixelFlipping(per_step=PER_STEP, response="logit"),
    Sparseness(),
    Complexity(),
    EffectiveComplexity(),
]
SHARED = {True: 1 + 2 * DRAWS, False: 1 + 2 * 2 * DRAWS}
"""Worlds in which explanations are made: the published rule keeps the old ones in IPT."""


def evaluated(task: vd.Task, metrics: list[Metric], published: bool) -> vd.meta.MetaEvaluation:
    """One meta-evaluation at the published strengths."""
    result = vd.meta.meta_evaluate(
        task,
        metrics,
        EXPLAINERS,
        draws=DRAWS,
        iterations=1,
        ar="published",
        published=published,
        resamples=0,
    )
    assert result.explanations == SHARED[published] * len(EXPLAINERS)
    return result


def measured(task: vd.Task, metrics: list[Metric], published: bool, rounds: int) -> Timing:
    """Time it against the rows it asked of the model."""

    def work() -> vd.models.Cost:
        before = task.predictor.meter.cost
        evaluated(task, metrics, published)
        return task.predictor.meter.cost - before

    rule = "as published" if published else "by the paper"
    return compare(f"{rule}: {', '.join(metric.name for metric in metrics)}", work, task, rounds)


def beside_the_peer(task: vd.Task, folder: Path | None, rounds: int) -> str:
    """Ours and MetaQuantus in turn on the same table, wall time, and how many times faster ours is."""
    pairs = []
    for _ in range(rounds):
        start = time.perf_counter()
        evaluated(task, MAP_METRICS[:1], True)
        ours = time.perf_counter() - start
        pairs.append((ours, peer_seconds(task, folder, PER_STEP, DRAWS)))
    ours, peer = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(theirs / mine for mine, theirs in pairs)
    return f"the same table: ours {ours:.2f} s, MetaQuantus {peer:.2f} s, {ratio:.1f} times faster"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.meta", description=__doc__)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peer", type=Path, help="folder of the packages metaquantus and quantus")
    chosen = parser.parse_args()
    task = tasks(chosen.device, "lenet", chosen.samples)
    print(f"{task.name}, {len(task)} samples, {torch.get_num_threads()} threads, torch {torch.__version__}")
    parts = [(MAP_METRICS[:1], True), (MAP_METRICS[:1], False), (MAP_METRICS, False)]
    print(
        table([measured(task, metrics, published, chosen.rounds) for metrics, published in parts]), flush=True
    )
    if chosen.peer is not None:
        print(beside_the_peer(task, chosen.peer, chosen.rounds))


if __name__ == "__main__":
    main()
