"""GEF: overhead of each form over its bare evaluations, and how cost and memory grow with samples and draws.

PYTHONPATH=src python -m benchmarks.gef [--samples 16 64 256] [--rounds 5] [--device cuda]
    [--network resnet18] [--data FOLDER] [--out FILE] [--picture FILE]

Every world has weights of its own, so the bare evaluations of a score are as many calls as there are worlds,
each on the rows of the task: models that stand ready, plain torch, nothing around them. On a CPU they and the
score are timed in turn, one thread, in CPU time. The search for the path is counted apart. With --data
(mnist/ as replications/gef describes it) the published comparison is made: 16 images, fast and exact.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import veridical as vd
from benchmarks.networks import lenet, resnet18
from benchmarks.timing import Timing, seconds, table
from replications.gef.run import metric_of
from veridical.models.predictor import memory_budget

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


def resnet_task(samples: int, device: str = "cpu") -> vd.Task:
    """The same at the size of a ResNet-18."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(samples, 3, 224, 224, generator=generator)
    space = vd.Space.pixels((3, 224, 224))
    return vd.Task(resnet18(), images, space=space, name="ResNet-18, 224 px").to(device)


NETWORKS = {"lenet": lenet_task, "resnet18": resnet_task}
READY = 25
"""Models that stand ready for the bare evaluations, used in turn: as many as Fast-GEF has worlds."""


def bare(task: vd.Task, cost: vd.models.Cost) -> Callable[[], None]:
    """As many explanations and answers as `cost` counts, each by a model of its own, in plain torch."""
    ready = READY if sum(p.numel() for p in task.model.parameters()) < 2**20 else 4
    models = [copy.deepcopy(task.model) for _ in range(ready)]
    chunk, place = task.predictor.rows, task.targets[:, None]
    explained = cost.backward // len(task)
    asked = cost.forward // len(task) - explained

    def run() -> None:
        # in the plan's precision: left alone, a GPU takes convolutions in TF32, at half the time
        with task.predictor.session(grad=None):
            for i in range(max(explained, asked)):
                model = models[i % ready]
                for at in range(0, len(task), chunk):
                    rows = slice(at, at + chunk)
                    if i < explained:
                        x = task.inputs[rows].detach().requires_grad_(True)
                        torch.autograd.grad(model(x).gather(1, place[rows]).sum(), x)
                    if i < asked:
                        with torch.no_grad():
                            model(task.inputs[rows])

    return run


def taken(work: Callable[[], object], device: torch.device) -> float:
    """CPU seconds on a CPU, where others may be at work too; seconds on a GPU."""
    if device.type == "cuda":
        return seconds(work, device)
    start = time.process_time()
    work()
    return time.process_time() - start


def overheads(network: str, samples: int, rounds: int, device: str) -> list[Timing]:
    """Each form with the gradient explainer: rows asked, seconds, bare seconds, ratio (medians of rounds)."""
    task = NETWORKS[network](samples, device)
    out = []
    for form in FORMS:
        # one draw and step of the costliest form are 105 worlds, work enough to time
        size = {"draws": 1, "steps": 1} if form == "jacobian" else {}
        metric = metric_of(form)(form=form, path=PATH, **size)  # type: ignore[arg-type]
        cost = vd.score(metric, task, "gradient").cost
        evaluations = bare(task, cost)
        evaluations()
        pairs = [
            (
                taken(lambda m=metric: vd.score(m, task, "gradient"), task.device),
                taken(evaluations, task.device),
            )
            for _ in range(rounds)
        ]
        pairs.sort(key=lambda pair: pair[0] / pair[1])
        label = f"{form}, {network}, {samples} samples"
        out.append(Timing(label, cost.forward, cost.backward, *pairs[len(pairs) // 2]))
        print(f"  {label}: {out[-1].seconds:.3f} s, overhead {out[-1].overhead:.2f}", flush=True)
    return out


def published(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """16 MNIST images on a LeNet: the program of the paper takes 11 s (Fast-GEF) and 325 s (GEF)."""
    os.environ.setdefault("VERIDICAL_DATA", str(folder))
    from replications.gef.data import mnist

    task = mnist(16)
    out: list[dict[str, Any]] = []
    for form, printed in (("fast", 11.0), ("reference", 325.0), ("arc", 325.0)):
        metric = metric_of(form)(form=form)  # type: ignore[arg-type]
        search = seconds(lambda m=metric: m.noise_path(task), task.device)
        vd.score(metric, task, "gradient")
        each = [seconds(lambda m=metric: vd.score(m, task, "gradient"), task.device) for _ in range(rounds)]
        out.append(
            {
                "form": form,
                "seconds": round(statistics.median(each), 3),
                "published program": printed,
                "path, once a task": round(search, 2),
            }
        )
        print(out[-1], flush=True)
    return out


def growth(sizes: list[int], device: str, rounds: int = 1) -> list[dict[str, Any]]:
    """Rows and seconds of Fast-GEF over samples and draws; rows must be exactly linear in both."""
    out = []
    for samples in sizes:
        task = lenet_task(samples, device)
        for draws in DRAWS:
            metric = vd.gef.FastGEF(path=PATH, draws=draws)
            costs: list[vd.models.Cost] = []

            def work(
                metric: vd.gef.GEF = metric, task: vd.Task = task, costs: list[vd.models.Cost] = costs
            ) -> None:
                costs.append(vd.score(metric, task, "gradient").cost)

            work()
            each = statistics.median(taken(work, task.device) for _ in range(rounds))
            expected = samples * (1 + 2 * len(PATH) * draws)
            if costs[0].forward != expected:
                raise AssertionError(f"{costs[0].forward} rows asked, expected {expected}")
            out.append({"samples": samples, "draws": draws, "rows": expected, "seconds": round(each, 4)})
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
    metric = vd.gef.FastGEF(path=PATH[:3], draws=1)
    out = []
    for samples in sizes:
        task = lenet_task(samples, device).with_plan(vd.Plan(rows=BLOCK))
        vd.score(metric, task[:BLOCK], "gradient")
        unit = 8 * task.space.n_features * 4 * BLOCK // memory_budget(task.device)
        with mock.patch("veridical.gef.metric.BLOCK_BYTES", unit + 1):
            used = peak_mib(lambda t=task: vd.score(metric, t, "gradient"), task.device)
        out.append({"samples": samples, "peak MiB": round(used, 1)})
    return out


def first_score(network: str, samples: int, device: str) -> dict[str, Any]:
    """The first Fast-GEF of a task: its search for a path, the score on it, and a second score.

    Rows of the search are compared with bare evaluations of their own: a search explains nothing.
    """
    task = NETWORKS[network](samples, device)
    bare(task, vd.models.Cost(forward=samples, backward=samples))()  # what torch does once is nobody's
    metric, found = vd.gef.FastGEF(), []
    search = taken(lambda: found.append(metric.noise_path(task)), task.device)
    given = vd.gef.FastGEF(path=found[0].levels)
    first, later = (taken(lambda: vd.score(given, task, "gradient"), task.device) for _ in range(2))
    cost = vd.score(given, task, "gradient").cost
    plain = taken(bare(task, cost), task.device)
    plain_search = taken(bare(task, vd.models.Cost(forward=found[0].rows)), task.device)
    return {
        "what": f"fast, {network}, {samples} samples",
        "rows of the search": found[0].rows,
        "rows of a score": [cost.forward, cost.backward],
        "search": round(search, 3),
        "search over bare": round(search / plain_search, 2),
        "first score": round(first, 3),
        "first score over bare": round(first / plain, 2),
        "later score": round(later, 3),
        "later score over bare": round(later / plain, 2),
    }


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", default="lenet", choices=list(NETWORKS))
    parser.add_argument("--data", type=Path, help="the folder that holds mnist/")
    parser.add_argument("--parts", nargs="+", default=["overhead", "growth"], choices=["overhead", "growth"])
    parser.add_argument("--out", type=Path, help="a JSON file for all of it")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    found: dict[str, Any] = {"device": given.device, "torch": torch.__version__}

    def keep(name: str, what: Any) -> None:
        found[name] = what
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(found, indent=1))

    timings: list[Timing] = []
    if "overhead" in given.parts:
        for samples in given.samples:
            timings += overheads(given.network, samples, given.rounds, given.device)
            keep("overhead", [{**vars(t), "overhead": t.overhead} for t in timings])
        print(table(timings))
        keep("first", [first_score(given.network, samples, given.device) for samples in given.samples])
        print(*found["first"], sep="\n")
    if given.data is not None:
        keep("published comparison", published(given.data, given.rounds))
    if "growth" in given.parts:
        keep("growth", growth(given.samples, given.device, given.rounds))
        keep("memory", memory([BLOCK, 4 * BLOCK, 16 * BLOCK], given.device))
        for line in [*found["growth"], *found["memory"]]:
            print(line)
        if given.picture is not None:
            picture(found["growth"], found["memory"], given.picture)


if __name__ == "__main__":
    main()
