"""How time and memory grow with samples, features, draws and workers: a JSON line a point, and a picture.

python -m benchmarks.scaling [--device cuda] [--out FILE.jsonl] [--axis NAME ...] [--small]
python -m benchmarks.scaling --picture FILE.svg FILE.jsonl ...

Every curve is a process of its own and its points grow, since the peak of a process never falls.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import veridical as vd
from benchmarks.networks import lenet
from benchmarks.results import machine
from benchmarks.timing import seconds
from veridical.metrics import ExplainerMetric, registry

SAMPLES = (16, 64, 256, 1024)
SIDES = (28, 56, 112, 224)
DRAWS = (10, 40, 160)
WORKERS = (1, 2, 4, 8)
STUDY = {"samples": 2048, "steps": 98}
CURVES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "samples": [
        ("pixel_flipping", {"steps": 16}),
        ("max_sensitivity", {}),
        ("mprt", {}),
        ("road", {}),
        ("sparseness", {}),
    ],
    "features": [("deletion", {"steps": 16}), ("max_sensitivity", {}), ("road", {}), ("sparseness", {})],
    "draws": [("faithfulness_correlation", {}), ("infidelity", {}), ("max_sensitivity", {})],
}
DRAWN = {"faithfulness_correlation": "runs", "infidelity": "draws", "max_sensitivity": "draws"}


def images(samples: int, side: int = 28) -> torch.Tensor:
    """Random images are enough: what is measured is the work."""
    return torch.rand(samples, 1, side, side, generator=torch.Generator().manual_seed(0))


def any_size() -> nn.Module:
    """A small network for images of every size: its cost is in step with their pixels."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2, 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval()


def peak(device: str) -> float:
    """MiB: the most this process has ever held, or the most that was allocated on the GPU."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated() / 2**20


def curve(
    axis: str, name: str, settings: dict[str, Any], device: str, small: bool
) -> Iterator[dict[str, Any]]:
    """The points of one metric along one axis."""
    sizes = {"samples": SAMPLES, "features": SIDES, "draws": DRAWS}[axis]
    for size in sizes[:2] if small else sizes:
        made, task = dict(settings), None
        if axis == "features":
            task = vd.Task(any_size(), images(16, size), space=vd.Space.pixels((1, size, size)))
        else:
            task = vd.Task(lenet(), images(size if axis == "samples" else 16))
        if axis == "draws":
            made[DRAWN[name]] = size
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        task = task.to(device)
        metric = registry.make(name, **made)
        held = peak(device)
        subject: Any = "gradient" if isinstance(metric, ExplainerMetric) else vd.explain("gradient", task)
        cost = vd.score(metric, task, subject).cost
        # what else a processor does meanwhile is not counted
        clock = "cpu" if device == "cpu" else "wall"
        score = partial(vd.score, metric, task, subject)
        spent = seconds(score, task.device, clock=clock)
        if spent < 1:
            spent = min(spent, *(seconds(score, task.device, clock=clock) for _ in range(2)))
        at = size * size if axis == "features" else size
        yield {
            "axis": axis,
            "what": name,
            "at": at,
            "rows": cost.forward,
            "seconds": spent,
            "mib": peak(device),
            "before": held,
        }


def studied(start: int, stop: int) -> vd.Task:
    """Some samples of the study whose workers are counted."""
    return vd.Task(lenet(), images(stop)[start:], ids=torch.arange(start, stop), name="workers")


def workers(small: bool) -> Iterator[dict[str, Any]]:
    """The same study with more and more processes, one thread each."""
    from veridical import study

    samples = 128 if small else STUDY["samples"]
    spec = {
        "name": "workers",
        "tasks": [{"code": "benchmarks.scaling:studied", "samples": samples}],
        "explainers": ["gradient"],
        "metrics": [{"name": "pixel_flipping", "settings": {"steps": STUDY["steps"]}}],
        "shard_size": 64,
        "plan": {"rows": 512, "threads": 1},
        "keep_explanations": False,
    }
    for count in WORKERS[:2] if small else WORKERS:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            done = study.run(
                spec, folder, executor="processes", workers=count, allow_code=True, progress=False
            )
            spent = time.perf_counter() - began
            largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            failed = len(done.failures)
        rows = samples * STUDY["steps"]
        yield {
            "axis": "workers",
            "what": "pixel_flipping",
            "at": count,
            "rows": rows,
            "seconds": spent,
            "mib": largest,
            "failed": failed,
        }


def points(axis: str, device: str, small: bool) -> Iterator[dict[str, Any]]:
    """All points of one axis, each curve from a fresh process."""
    if axis == "workers":
        yield from workers(small)
        return
    for name, settings in CURVES[axis]:
        if device != "cpu":
            # the peak of a GPU can be set back
            yield from curve(axis, name, settings, device, small)
            continue
        call = [sys.executable, "-m", "benchmarks.scaling", "--one", axis, name, "--device", device]
        answer = subprocess.run(
            [*call, *(["--small"] if small else [])], capture_output=True, text=True, check=False
        )
        for line in answer.stdout.splitlines():
            yield json.loads(line)
        if answer.returncode:
            print(answer.stderr[-500:], file=sys.stderr, flush=True)


def picture(files: list[Path], out: Path) -> None:
    """Seconds above and memory below, one column an axis."""
    from matplotlib.figure import Figure

    from veridical.plots import COLOURS

    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    axes = [axis for axis in (*CURVES, "workers") if any(row["axis"] == axis for row in rows)]
    figure = Figure(figsize=(3.1 * len(axes), 5.2), layout="constrained")
    grid = figure.subplots(2, len(axes), squeeze=False)
    names = list(dict.fromkeys((row["what"], row["device"]) for row in rows))
    places = list(dict.fromkeys(device for _, device in names))
    kinds = list(dict.fromkeys(what for what, _ in names))
    for column, axis in enumerate(axes):
        for what, device in names:
            own = [row for row in rows if (row["axis"], row["what"], row["device"]) == (axis, what, device)]
            if not own:
                continue
            style: dict[str, Any] = {
                "color": COLOURS[kinds.index(what) % len(COLOURS)],
                "linestyle": ("-", "--", ":")[places.index(device) % 3],
                "marker": "o",
                "markersize": 3,
                "label": f"{what}, {device}",
            }
            at = [row["at"] for row in own]
            grid[0][column].plot(at, [row["seconds"] for row in own], **style)
            grid[1][column].plot(at, [row["mib"] for row in own], **style)
        for ax in (grid[0][column], grid[1][column]):
            ax.set_xscale("log", base=2)
            ax.spines[["top", "right"]].set_visible(False)
        grid[0][column].set_yscale("log")
        grid[1][column].set_ylim(bottom=0)
        grid[0][column].set_title(axis)
        grid[1][column].set_xlabel(axis)
    grid[0][0].set_ylabel("seconds")
    grid[1][0].set_ylabel("peak memory, MiB")
    handles = {line.get_label(): line for row in grid for ax in row for line in ax.get_lines()}
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=3,
        fontsize=7,
        frameon=False,
        handlelength=3.5,
    )
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--axis", choices=[*CURVES, "workers"], action="append")
    parser.add_argument("--small", action="store_true", help="two points an axis, to see that it runs")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    if given.picture:
        picture(given.files, given.picture)
        return
    if given.one:
        axis, name = given.one
        for row in curve(axis, name, dict(CURVES[axis])[name], given.device, given.small):
            print(json.dumps(row), flush=True)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    facts = machine(given.device)
    for axis in given.axis or [*CURVES, *(["workers"] if given.device == "cpu" else [])]:
        for row in points(axis, given.device, given.small):
            row |= {"device": "CPU" if given.device == "cpu" else "GPU", "machine": facts}
            print(
                f"  {axis} {row['what']} at {row['at']}: {row['seconds']:.4f} s, {row['mib']:.0f} MiB",
                flush=True,
            )
            if given.out:
                with given.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
