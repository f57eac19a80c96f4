"""Metrics that read maps: 10,000 maps of 224 x 224 pixels, seconds and the memory they take beside the maps.

python -m benchmarks.maps [--device cuda] [--samples 10000] [--side 224]
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import veridical as vd
from benchmarks.results import machine as facts_of
from benchmarks.results import markdown_table, sentence
from benchmarks.timing import seconds
from veridical.metrics import ExplainerMetric, registry
from veridical.metrics.base import AnyMetric

FEW: dict[str, dict[str, Any]] = {"non_sensitivity": {"group": 7168, "draws": 1}}
"""Seven groups a map: what is timed is the work on maps, not a model."""


def task_of(samples: int, side: int, device: str) -> vd.Task:
    """Images and object masks for a model so small that it takes no time: averages and a linear layer."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.rand(samples, 1, side, side, generator=generator, device=device)
    masks = torch.zeros(1, side, side, dtype=torch.bool, device=device)
    masks[:, side // 4 : side // 2, side // 4 : side // 2] = True
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(side // 7), nn.Flatten(), nn.Linear(49, 4)).to(device)
    given = {"space": vd.Space.pixels((1, side, side)), "plan": vd.Plan(rows=512), "name": "maps"}
    return vd.Task(model, x, masks=masks.expand(samples, -1, -1), **given)


def chosen(task: vd.Task) -> list[AnyMetric]:
    """Every metric of the three kinds that the issue is about maps, not about models."""
    kinds = {"complexity", "localisation", "axiomatic"}
    made = [registry.make(name, **FEW.get(name, {})) for name in registry]
    return [m for m in made if m.category in kinds and m.inapplicable_reason(task) is None]


def rows(samples: int, side: int, device: str) -> Iterator[dict[str, Any]]:
    """One row a metric: seconds, and the most memory beyond the inputs and maps themselves."""
    task = task_of(samples, side, device)
    generator = torch.Generator(device).manual_seed(1)
    maps = torch.randn(samples, side * side, generator=generator, device=device)
    explanation = vd.Explanation(maps, task.space, task.targets, task.ids)
    for metric in chosen(task):
        subject: Any = "gradient" if isinstance(metric, ExplainerMetric) else explanation
        few = task[:8]
        vd.score(metric, few, subject if isinstance(subject, str) else explanation.take(slice(0, 8)))
        held = _memory(device, reset=True)
        # the order of a map is kept with it: what one metric sorted the next would find
        if not isinstance(subject, str):
            subject = explanation.with_values(maps)
        spent = seconds(lambda m=metric, s=subject: vd.score(m, task, s), task.device)  # type: ignore[misc]
        yield {
            "what": metric.name,
            "seconds": spent,
            "microseconds a map": round(spent / samples * 1e6, 2),
            "MiB beside the maps": round(_memory(device) - held),
        }


def _memory(device: str, reset: bool = False) -> float:
    """MiB: the most that was allocated since the last reset on a GPU, the process's highest ever on a CPU."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated() / 2**20


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=224)
    given = parser.parse_args()
    print(sentence(facts_of(given.device)))
    print(f"{given.samples} maps of {given.side} x {given.side} pixels\n")
    print("\n".join(markdown_table(list(rows(given.samples, given.side, given.device)))))


if __name__ == "__main__":
    main()
