"""The probe alone, under each kind of mask rule: what asking costs beyond the model's own time."""

from __future__ import annotations

import torch

import veridical as vd
from benchmarks.metrics import tasks
from benchmarks.timing import Timing, compare
from veridical.perturb.probe import probe
from veridical.perturb.rules import MaskRule, RandomSubsets, RankThreshold


def rules(task: vd.Task, masks: int) -> dict[str, MaskRule]:
    """Ranks, subsets of one size, and subsets of twenty sizes a draw, about as many masks of each."""
    count = task.space.n_features
    ranks = vd.rng.random_ranks(vd.core.Key(0), task.ids, 0, count)
    steps = torch.linspace(1, count - 1, masks).long()
    sizes = torch.linspace(1, count - 1, 20).long()
    return {
        "rank thresholds": RankThreshold(ranks, steps),
        "subsets of one size": RandomSubsets(
            vd.core.Key(0), task.ids, count, masks, torch.tensor([count // 5])
        ),
        "subsets of 20 sizes": RandomSubsets(vd.core.Key(0), task.ids, count, max(1, masks // 20), sizes),
    }


def measure(device: str, size: str, rounds: int = 3, samples: int | None = None) -> list[Timing]:
    """One timing a rule."""
    task = tasks(device, size, samples)
    out = []
    for name, rule in rules(task, 100 if size == "lenet" else 20).items():

        def work(rule: MaskRule = rule) -> vd.models.Cost:
            before = task.predictor.meter.cost
            probe(task, rule)
            return task.predictor.meter.cost - before

        out.append(compare(f"probe: {name}", work, task, rounds))
        print(f"  {name}: {out[-1].seconds:.3f} s, overhead {out[-1].overhead:.2f}", flush=True)
    return out
