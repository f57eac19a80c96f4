"""Every explainer that applies: rows asked, seconds, seconds of the bare rows, and their ratio."""

from __future__ import annotations

import veridical as vd
from benchmarks.metrics import tasks
from benchmarks.timing import Timing, compare
from veridical.explainers import Explainer, applicable, registry

SLOW = {"partition_shap"}
"""Adapters to other packages: their time is not ours."""


def settings(size: str) -> dict[str, dict[str, object]]:
    """Hyper-parameters that bound the number of evaluations on large inputs; the others are defaults."""
    if size == "lenet":
        return {}
    few: dict[str, object] = {"draws": 64}
    return {
        "lime": few,
        "rise": few,
        "kernel_shap": {"budget": 64},
        "occlusion": {"window": 32, "stride": 32},
    }


def measure(
    device: str, size: str, names: list[str] | None = None, rounds: int = 3, samples: int | None = None
) -> list[Timing]:
    """One timing an explainer. One feature at a time is left out where there are 50,000 of them."""
    task = tasks(device, size, samples)
    skipped = SLOW | (set() if size == "lenet" else {"feature_ablation"})
    out = []
    for name in names or [name for name in applicable(task) if name not in skipped]:
        explainer = registry.make(name, **settings(size).get(name, {}))

        def work(explainer: Explainer = explainer) -> vd.Cost:
            return vd.explain(explainer, task).cost

        timing = compare(name, work, task, rounds)
        if timing.forward:
            out.append(timing)
            print(f"  {name}: {timing.seconds:.3f} s, overhead {timing.overhead:.2f}", flush=True)
    return out
