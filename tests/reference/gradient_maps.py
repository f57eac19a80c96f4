"""Slow, obvious rewrites of the gradient explainers: one sample and one draw at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.values.task import Task


def slope(task: Task, sample: int, x: Tensor) -> Tensor:
    x = x[None].clone().requires_grad_(True)
    y = task.model(x)[0, task.targets[sample]]
    return torch.autograd.grad(y, x)[0][0]


def integrated(task: Task, sample: int, x: Tensor, steps: int) -> Tensor:
    """From zero, at the middles of `steps` equal steps."""
    total = torch.zeros_like(x)
    for step in range(steps):
        total += slope(task, sample, x * (step + 0.5) / steps) / steps
    return x * total


def noise(task: Task, key: Key, sample: int, draw: int, share: float) -> Tensor:
    """Normal numbers times a share of the range, laid out pixel by pixel, its channels together."""
    x = task.inputs[sample]
    flat = keyed.normal(key / "noise", task.draw_ids[sample : sample + 1], draw, x.numel(), x.dtype)[0]
    if x.dim() == 3:
        flat = flat.reshape(x.shape[1], x.shape[2], x.shape[0]).permute(2, 0, 1)
    return flat * share * float(x.max() - x.min())


def under_noise(
    task: Task, key: Key, samples: int, share: float, base: Callable[[int, Tensor], Tensor] | None = None
) -> Tensor:
    """All maps under noise: (n, draws, *input shape)."""
    base = base or (lambda sample, x: slope(task, sample, x))
    rows = []
    for sample in range(len(task)):
        maps = [
            base(sample, task.inputs[sample] + noise(task, key, sample, draw, share))
            for draw in range(samples)
        ]
        rows.append(torch.stack(maps))
    return torch.stack(rows)


def from_baselines(task: Task, key: Key, samples: int, share: float = 0.0) -> Tensor:
    rows = []
    for sample in range(len(task)):
        own = task.draw_ids[sample : sample + 1]
        total = torch.zeros_like(task.inputs[sample])
        for draw in range(samples):
            x = task.inputs[sample]
            if share:
                x = x + noise(task, key, sample, draw, share)
            start = torch.zeros_like(x)
            if task.train is not None:
                start = task.train[int(keyed.integers(key / "baseline", own, draw, 1, len(task.train)))]
            place = float(keyed.uniform(key / "place", own, draw, 1, torch.float64))
            total += (x - start) * slope(task, sample, start + place * (x - start))
        rows.append(total / samples)
    return torch.stack(rows)
