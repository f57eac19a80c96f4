"""GEF: overhead of each form over its bare evaluations, and how cost and memory grow with samples and draws.

PYTHONPATH=src python -m benchmarks.gef [--samples 16 64 256] [--rounds 3] [--device cuda] [--picture FILE]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import veridical as vd
from benchmarks.networks import lenet
from benchmarks.timing import Timing, compare, seconds, table
from veridical.predictor import memory_budget

PATH = (0.001, 0.5, 1.0, 1.5, 2.0)
FORMS = ("fast", "arc", "reference", "jacobian")
DRAWS = (1, 2, 5)
BLOCK = 256
"""Samples whose maps are held at once while memory is measured; by default more are, as memory allows."""


def lenet_task(samples: int, device: str = "cpu") -> vd.Task:
    """Random images are enough: what is timed is the work, not the score."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(samples, 1, 28, 28, generator=generator)
    return vd.Task(lenet(), images, name="LeNet, 28 px").to(device)


def overheads(samples: int, rounds: int, device: str) -> list[Timing]:
    """Each form with the gradient explainer: rows asked, seconds, bare seconds, ratio."""
    task = lenet_task(samples, device)
    out = []
    for form in FORMS:
        # one draw of the costlier forms is work enough to time, and few steps of the costliest
        size: dict[str, Any] = {"draws": 5 if form == "fast" else 1, "steps": 1 if form == "jacobian" else 5}
        metric = vd.GEF(form=form, path=PATH, **size)  # type: ignore[arg-type]

        def work(metric: vd.GEF = metric) -> vd.Cost:
            return vd.score(metric, task, "gradient").cost

        out.append(compare(f"{form}, {samples} samples", work, task, rounds))
        print(f"  {out[-1].name}: {out[-1].seconds:.2f} s, overhead {out[-1].overhead:.2f}", flush=True)
    return out


def growth(sizes: list[int], device: str) -> list[dict[str, Any]]:
    """Rows and seconds of Fast-GEF over samples and draws; rows must be exactly linear in both."""
    out = []
    for samples in sizes:
        task = lenet_task(samples, device)
        for draws in DRAWS:
            metric = vd.FastGEF(path=PATH, draws=draws)
            costs: list[vd.Cost] = []
            taken = seconds(
                lambda m=metric, t=task, c=costs: c.append(vd.score(m, t, "gradient").cost), task.device
            )
            expected = samples * (1 + 2 * len(PATH) * draws)
            if costs[0].forward != expected:
                raise AssertionError(f"{costs[0].forward} rows asked, expected {expected}")
            out.append({"samples": samples, "draws": draws, "rows": expected, "seconds": round(taken, 3)})
    return out


def peak_mib(work: Callable[[], object], device: torch.device) -> float:
    """MiB that the work held at most above what was held before; NaN where the system does not say."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is held now
        before_kib = _status("VmRSS")
        work()
        return (_status("VmHWM") - before_kib) / 1024
    except OSError:
        return math.nan


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name)))


def memory(sizes: list[int], device: str) -> list[dict[str, Any]]:
    """Peak memory of Fast-GEF over samples, with maps held in blocks of 256."""
    metric = vd.FastGEF(path=PATH[:3], draws=1)
    out = []
    for samples in sizes:
        task = lenet_task(samples, device).with_plan(vd.Plan(rows=BLOCK))
        vd.score(metric, task[:BLOCK], "gradient")
        unit = 8 * task.space.n_features * 3 * BLOCK // memory_budget(task.device)
        with mock.patch("veridical.gef.metric.BLOCK_BYTES", unit + 1):
            used = peak_mib(lambda t=task: vd.score(metric, t, "gradient"), task.device)
        out.append({"samples": samples, "peak MiB": round(used, 1)})
    return out


def calibration(samples: int, device: str) -> str:
    """What the search for the path costs, counted apart from the scores."""
    task = lenet_task(samples, device)
    found: list[Any] = []
    taken = seconds(lambda: found.append(vd.gef.find_path(task)), task.device)
    return f"path search on {samples} samples: {found[0].rows} rows, {taken:.2f} s ({found[0]})"


def picture(grown: list[dict[str, Any]], held: list[dict[str, Any]], path: Path) -> None:
    """Seconds over samples and over draws, and memory over samples."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    for draws in DRAWS:
        part = [line for line in grown if line["draws"] == draws]
        first.plot([p["samples"] for p in part], [p["seconds"] for p in part], "o-", label=f"{draws} draws")
    for samples in dict.fromkeys(line["samples"] for line in grown):
        part = [line for line in grown if line["samples"] == samples]
        second.plot(
            [p["draws"] for p in part], [p["seconds"] for p in part], "o-", label=f"{samples} samples"
        )
    third.plot([line["samples"] for line in held], [line["peak MiB"] for line in held], "o-")
    third.set_ylim(0, None)
    for ax, x, y in (
        (first, "samples", "seconds"),
        (second, "draws", "seconds"),
        (third, "samples", "peak MiB"),
    ):
        ax.set_xlabel(x)
        ax.set_ylabel(y)
    first.legend(fontsize=7)
    second.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    print(table(overheads(given.samples[0], given.rounds, given.device)))
    grown = growth(given.samples, given.device)
    held = memory([BLOCK, 4 * BLOCK, 16 * BLOCK], given.device)
    for line in [*grown, *held]:
        print(line)
    print(calibration(given.samples[0], given.device))
    if given.picture is not None:
        picture(grown, held, given.picture)


if __name__ == "__main__":
    main()
