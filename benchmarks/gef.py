"""GEF: overhead of each form over its bare evaluations, and how cost grows with samples and draws.

PYTHONPATH=src python -m benchmarks.gef [--samples 16 64 256] [--rounds 3]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import veridical as vd
from benchmarks.networks import lenet
from benchmarks.timing import Timing, compare, seconds, table

PATH = (0.001, 0.5, 1.0, 1.5, 2.0)
FORMS = ("fast", "arc", "reference", "jacobian")


def lenet_task(samples: int) -> vd.Task:
    """Random images are enough: what is timed is the work, not the score."""
    generator = torch.Generator().manual_seed(0)
    return vd.Task(lenet(), torch.rand(samples, 1, 28, 28, generator=generator), name="LeNet, 28 px")


def overheads(samples: int, rounds: int) -> list[Timing]:
    """Each form with the gradient explainer: rows asked, seconds, bare seconds, ratio."""
    task = lenet_task(samples)
    out = []
    for form in FORMS:
        # one draw of the costliest form is work enough to time
        draws = 1 if form == "jacobian" else 5
        metric = vd.GEF(form=form, path=PATH, draws=draws)  # type: ignore[arg-type]

        def work(metric: vd.GEF = metric) -> vd.Cost:
            return vd.score(metric, task, "gradient").cost

        out.append(compare(f"{form}, {samples} samples", work, task, rounds))
        print(f"  {out[-1].name}: {out[-1].seconds:.2f} s, overhead {out[-1].overhead:.2f}", flush=True)
    return out


def growth(sizes: list[int]) -> list[dict[str, Any]]:
    """Rows and seconds of Fast-GEF over samples and draws; rows must be exactly linear."""
    out = []
    for samples in sizes:
        for draws in (1, 5):
            task = lenet_task(samples)
            metric = vd.FastGEF(path=PATH, draws=draws)
            cost = vd.score(metric, task, "gradient").cost
            taken = seconds(lambda m=metric, t=task: vd.score(m, t, "gradient"), task.device)
            expected = samples * (1 + 2 * len(PATH) * draws)
            if cost.forward != expected:
                raise AssertionError(f"{cost.forward} rows asked, expected {expected}")
            out.append({"samples": samples, "draws": draws, "rows": cost.forward, "seconds": round(taken, 3)})
    return out


def calibration(samples: int) -> str:
    """What the search for the path costs, counted apart from the scores."""
    task = lenet_task(samples)
    found: list[Any] = []
    taken = seconds(lambda: found.append(vd.gef.find_path(task)), task.device)
    return f"path search on {samples} samples: {found[0].rows} rows, {taken:.2f} s ({found[0]})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    timings = [timing for size in given.samples[:2] for timing in overheads(size, given.rounds)]
    print(table(timings))
    for line in growth(given.samples):
        print(line)
    print(calibration(given.samples[0]))


if __name__ == "__main__":
    main()
