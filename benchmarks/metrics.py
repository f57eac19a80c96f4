"""Every metric that asks the model: evaluations, seconds, bare seconds and their ratio."""

from __future__ import annotations

import torch

import veridical as vd
from benchmarks.networks import lenet, resnet18
from benchmarks.timing import Timing, compare
from veridical.metrics import ExplainerMetric, applicable, registry
from veridical.metrics.base import AnyMetric


def tasks(device: str, size: str, samples: int | None = None) -> vd.Task:
    """The task of one table, with object masks so that all metrics apply."""
    generator = torch.Generator().manual_seed(0)
    on_gpu = device != "cpu"
    if size == "lenet":
        count = samples or (1024 if on_gpu else 64)
        x = torch.rand(count, 1, 28, 28, generator=generator)
        x = x * (torch.rand(x.shape, generator=generator) > 0.7)
        masks = torch.zeros(count, 28, 28, dtype=torch.bool)
        masks[:, 8:20, 8:20] = True
        return vd.Task(lenet(), x, masks=masks, train=x[:32], name="LeNet, 28 px").to(device)
    count = samples or (64 if on_gpu else 4)
    x = torch.randn(count, 3, 224, 224, generator=generator)
    masks = torch.zeros(count, 224, 224, dtype=torch.bool)
    masks[:, 64:160, 64:160] = True
    return vd.Task(resnet18(), x, masks=masks, train=x[:4], name="ResNet-18 size, 224 px").to(device)


def settings(size: str) -> dict[str, dict[str, object]]:
    """Hyper-parameters that bound the number of evaluations on large inputs; the others are defaults."""
    few: dict[str, object] = {"draws": 10}
    common: dict[str, dict[str, object]] = dict.fromkeys(("rfid_plus", "rfid_minus"), few)
    if size == "lenet":
        return common
    return {
        **common,
        "pixel_flipping": {"steps": 168},
        "faithfulness_estimate": {"steps": 112},
        "kept_features": {"levels": 112},
        "monotonicity": {"steps": 112},
        "monotonicity_correlation": {"steps": 28},
        "non_sensitivity": {"group": 448},
        "sensitivity_n": {"draws": 10},
    }


def measure(
    device: str, size: str, names: list[str] | None = None, rounds: int = 3, samples: int | None = None
) -> list[Timing]:
    """One timing a metric."""
    task = tasks(device, size, samples)
    maps = vd.explain("gradient", task)
    out = []
    # those that fine-tune a model first have a table of their own
    skipped = {"ffid_plus", "ffid_minus"}
    for name in names or [name for name in applicable(task) if name not in skipped]:
        metric: AnyMetric = registry.make(name, **settings(size).get(name, {}))

        def work(metric: AnyMetric = metric) -> vd.Cost:
            subject = "gradient" if isinstance(metric, ExplainerMetric) else maps
            return vd.score(metric, task, subject).cost

        try:
            timing = compare(name, work, task, rounds)
        except Exception as error:
            print(f"  {name}: failed, {type(error).__name__}: {error}", flush=True)
            continue
        if timing.forward:
            out.append(timing)
            print(f"  {name}: {timing.seconds:.3f} s, overhead {timing.overhead:.2f}", flush=True)
    return out
