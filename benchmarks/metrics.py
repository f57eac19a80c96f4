"""Every metric that asks the model: evaluations, seconds, bare seconds and their ratio."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

import veridical as vd
from benchmarks.networks import lenet, resnet18
from benchmarks.timing import Timing, compare
from veridical.metrics import ExplainerMetric, applicable, registry
from veridical.metrics.base import AnyMetric

FINE_TUNED = {"ffid_plus", "ffid_minus"}
"""Those that fine-tune a model first have a table of their own."""


def tasks(device: str, size: str, samples: int | None = None) -> vd.Task:
    """The task of one table, with object masks so that all metrics apply."""
    generator = torch.Generator().manual_seed(0)
    on_gpu = device != "cpu"
    if size == "lenet":
        count = samples or (1024 if on_gpu else 256)
        x = torch.rand(count, 1, 28, 28, generator=generator)
        x = x * (torch.rand(x.shape, generator=generator) > 0.7)
        masks = torch.zeros(count, 28, 28, dtype=torch.bool)
        masks[:, 8:20, 8:20] = True
        return vd.Task(lenet(), x, masks=masks, train=x[: count // 2], name="LeNet, 28 px").to(device)
    # not fewer than 8 rows, to which a plan fills up short chunks: bare rows are not filled up
    count = samples or (64 if on_gpu else 8)
    x = torch.randn(count, 3, 224, 224, generator=generator)
    masks = torch.zeros(count, 224, 224, dtype=torch.bool)
    masks[:, 64:160, 64:160] = True
    name = "ResNet-18 size, 224 px"
    train, space = x[: max(min(8, count), count // 2)], vd.Space.pixels((3, 224, 224))
    return vd.Task(resnet18(), x, masks=masks, train=train, space=space, name=name).to(device)


def settings(size: str, brief: bool = False) -> dict[str, dict[str, object]]:
    """Hyper-parameters that bound the number of evaluations; those of all others are the defaults.

    `brief` bounds it further, for a processor that takes a tenth of a second for one large image.
    """
    few: dict[str, object] = {"draws": 10}
    if size == "lenet":
        common: dict[str, dict[str, object]] = dict.fromkeys(("rfid_plus", "rfid_minus"), few)
        if not brief:
            return common
        steps: dict[str, object] = {"steps": 98}
        return {
            **common,
            "pixel_flipping": steps,
            "faithfulness_estimate": steps,
            "monotonicity": steps,
            "kept_features": {"levels": 98},
            "monotonicity_correlation": {"steps": 49},
            "non_sensitivity": {"group": 16},
        }
    steps = {"steps": 28}
    if brief:
        one: dict[str, object] = {"draws": 1}
        four: dict[str, object] = {"draws": 4}
        eight: dict[str, object] = {"steps": 8}
        near = ("max_sensitivity", "avg_sensitivity", "local_lipschitz")
        relative = [f"relative_{what}_stability" for what in ("input", "output", "representation")]
        curves = ("pixel_flipping", "faithfulness_estimate", "monotonicity", "insertion", "deletion")
        return {
            **dict.fromkeys(("rfid_plus", "rfid_minus"), one),
            **dict.fromkeys(curves, eight),
            **dict.fromkeys((*near, *relative), four),
            "region_perturbation": {"regions": 8},
            "selectivity": {"patch": 75},
            "irof": {"segments": 9},
            "kept_features": {"levels": 8},
            "monotonicity_correlation": {"steps": 4},
            "non_sensitivity": {"group": 6272, "draws": 1},
            "sensitivity_n": {"draws": 3},
            "infidelity": {"draws": 8},
            "faithfulness_correlation": {"runs": 8},
            "smooth_mprt": {"noise_draws": 1},
            "fast_gef": {"draws": 1},
        }
    two: dict[str, object] = {"draws": 2}
    return {
        **dict.fromkeys(("rfid_plus", "rfid_minus"), two),
        "sensitivity_n": {"draws": 3},
        **dict.fromkeys(("faithfulness_estimate", "monotonicity"), steps),
        "pixel_flipping": {"steps": 168},
        "kept_features": {"levels": 28},
        "monotonicity_correlation": {"steps": 7},
        "non_sensitivity": {"group": 1792},
        "selectivity": {"patch": 32},
        "smooth_mprt": {"noise_draws": 2},
    }


@dataclass(frozen=True)
class Case:
    """A metric and what it judges, on one task."""

    metric: AnyMetric
    task: vd.Task
    subject: object

    def __call__(self) -> vd.models.Cost:
        """Score once."""
        return vd.score(self.metric, self.task, self.subject).cost

    @property
    def batch(self) -> int | None:
        """Rows that one call can hold: those of one set of weights, where these change."""
        if "weights" not in self.metric.needs:
            return None
        return len(self.task) * getattr(self.metric, "noise_draws", 1)


def cases(task: vd.Task, size: str, names: list[str] | None = None, brief: bool = False) -> Iterator[Case]:
    """Every metric that applies, or those named, with bounded settings."""
    maps = vd.explain("gradient", task)
    chosen = settings(size, brief)
    for name in names or [name for name in applicable(task) if name not in FINE_TUNED]:
        metric = registry.make(name, **chosen.get(name, {}))
        if isinstance(metric, vd.gef.GEF):
            # the search is the task's and made once: `benchmarks.gef` times it apart from the scores
            metric = replace(metric, path=metric.noise_path(task).levels)
        yield Case(metric, task, "gradient" if isinstance(metric, ExplainerMetric) else maps)


def timings(
    task: vd.Task,
    size: str,
    names: list[str] | None = None,
    rounds: int = 3,
    brief: bool = False,
    clock: str = "wall",
) -> Iterator[Timing]:
    """One timing a metric, as soon as it is there."""
    for case in cases(task, size, names, brief):
        try:
            timing = compare(case.metric.name, case, task, rounds, case.batch, clock)
        except Exception as error:
            print(f"  {case.metric.name}: failed, {type(error).__name__}: {error}", flush=True)
            continue
        if timing.forward:
            yield timing


def measure(
    device: str, size: str, names: list[str] | None = None, rounds: int = 3, samples: int | None = None
) -> list[Timing]:
    """One timing a metric, printed as they come."""
    out = []
    for timing in timings(tasks(device, size, samples), size, names, rounds, brief=device == "cpu"):
        out.append(timing)
        print(f"  {timing.name}: {timing.seconds:.4f} s, overhead {timing.overhead:.2f}", flush=True)
    return out
