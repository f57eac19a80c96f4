"""QGE's own limits: `python -m benchmarks.qge` times all rankings of 10 features, tau-b, and shared curves.

Limits to compare with, on 2 cores and under 2 GB: all 3,628,800 qualities and gaps of one input in about a
second, one tau-b of them in about two, and (`--figure`) five inputs with QGE and QRAND_1..10, tau, rho and
strata, in under five minutes. Pin it to two cores: `taskset -c 0,1 python -m benchmarks.qge --figure`.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

import veridical as vd
from veridical.functional import kendall_tau_b, spearman


def timed(what: str, run: Callable[[], object], rounds: int = 3) -> None:
    """Print the best of some rounds, by the clock and on the processor, and the peak memory so far."""
    best = busy = float("inf")
    for _ in range(rounds):
        start, work = time.perf_counter(), time.process_time()
        run()
        best = min(best, time.perf_counter() - start)
        busy = min(busy, time.process_time() - work)
    # the unit of ru_maxrss is a kilobyte on Linux
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{what:<58} {best:8.3f} s   processor {busy:8.3f} s   peak {peak:.2f} GB", flush=True)


def main() -> None:
    """Time the exhaustive study's parts and the shared curves of QGE."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 12))
    task = vd.Task(net, torch.randn(64, 10), fill=0.0)
    print(f"{torch.get_num_threads()} threads; torch {torch.__version__}, veridical {vd.__version__}")
    timed("q and QGE of all 10! rankings of one input", lambda: vd.qge.rankings_of(task[0]))
    found = vd.qge.rankings_of(task[0])
    timed("tau-b of q and QGE over 10! rankings", lambda: kendall_tau_b(found.scores, found.gaps), 2)
    timed("rho of q and QGE over 10! rankings", lambda: spearman(found.scores, found.gaps), 2)
    if "--figure" in sys.argv[1:]:
        five = task[:5]
        timed(
            "figure 2: 5 inputs, 10! rankings, QGE and QRAND_1..10",
            lambda: vd.qge.exhaustive_study(five, draws=10, progress=False),
            1,
        )
    explanation = vd.explain("input_x_gradient", task)
    for name in ("pixel_flipping", "qge:pixel_flipping", "qrand:pixel_flipping"):
        rows = vd.score(name, task, explanation).cost.forward
        timed(f"{name}, 64 samples ({rows} rows)", lambda n=name: vd.score(n, task, explanation))  # type: ignore[misc]
    timed(
        "exact standing of 8 samples",
        lambda: vd.qge.standing(task[:8], "pixel_flipping", explanation.take(slice(0, 8))),
    )
    digits = vd.tasks.load("digits")[:24]
    maps = vd.explain("integrated_gradients", digits)
    for name in ("pixel_flipping", "faithfulness_correlation", "sensitivity_n"):
        timed(
            f"standing of 24 digits under {name}, as by default",
            lambda n=name: vd.qge.standing(digits, n, maps),  # type: ignore[misc]
        )
    if "--pairs" in sys.argv[1:]:
        pairs()


def pairs() -> None:
    """What antithetic pairs are worth: the share of the variance they remove, and how wide intervals are."""
    print("standing of 24 samples by 100 draws: variance removed by pairs, half the interval in points")
    for name in ("digits", "breast_cancer", "reviews"):
        task = vd.tasks.load(name)[:24]
        for metric in ("pixel_flipping", "kept_features"):
            for explainer in ("integrated_gradients", "random"):
                place = vd.qge.standing(task, metric, explainer, exact=False)
                removed, half = 1 - place.variance_ratio, 50 * (place.high - place.low)
                # where all rankings stand on one side there is no variance to remove
                inside = (place.percentile > 0.02) & (place.percentile < 0.98)
                share = f"{float(removed[inside].mean()):6.1%}" if bool(inside.any()) else "     -"
                print(
                    f"{name:<14} {metric:<15} {explainer:<21} removed {share} in the {int(inside.sum()):2d} "
                    f"inside; interval +-{float(half.mean()):4.1f}, widest +-{float(half.max()):.1f}; "
                    f"plain draws for {place.method.count('plain')}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
