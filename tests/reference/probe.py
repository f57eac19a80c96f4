"""The probe, one row at a time: expand one mask, fill, ask, read one number."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.perturb.fills import Fill
from veridical.values.task import Task


def responses(task: Task, masks: Tensor, fill: Fill, key: Key, response: str) -> Tensor:
    """(N, M) for masks (N, M, V), True where removed; no rounding, no ties, no chunks."""
    state = fill.prepare(task.train, task.space)
    out = torch.zeros(masks.shape[:2], dtype=torch.float64)
    for n in range(len(task)):
        x = task.inputs[n : n + 1]
        ids = task.draw_ids[n : n + 1]
        for m in range(masks.shape[1]):
            removed = element_mask(task, n, masks[n, m])
            if fill.looks_at_mask:
                variants = [fill.impute(x, removed[None], ids, key)[0]]
            else:
                backgrounds = fill.background(state, x, ids, key)[0]
                variants = [torch.where(removed, background, x[0]) for background in backgrounds]
            answers = [ask(task, n, variant, response) for variant in variants]
            out[n, m] = sum(answers) / len(answers)
    return out


def element_mask(task: Task, n: int, removed: Tensor) -> Tensor:
    """Which elements of sample n go, found by looking at every element's label."""
    labels = task.space.labels[n] if task.space.per_sample else task.space.labels
    labels = labels.expand(task.space.input_shape)
    out = torch.zeros(task.space.input_shape, dtype=torch.bool)
    for place in torch.cartesian_prod(*[torch.arange(s) for s in task.space.input_shape]).reshape(
        -1, len(task.space.input_shape)
    ):
        label = int(labels[tuple(place)])
        exists = task.space.valid is None or (label >= 0 and bool(task.space.valid[n, label]))
        out[tuple(place)] = label >= 0 and exists and bool(removed[label])
    return out


def ask(task: Task, n: int, row: Tensor, response: str) -> float:
    """The explained output of one row, by the bare model."""
    side = task.side
    with torch.no_grad():
        if isinstance(side, dict):
            logits = task.model(row[None], **{k: v[n : n + 1] for k, v in side.items()})
        else:
            logits = task.model(row[None], *[v[n : n + 1] for v in side])
    target = int(task.targets[n])
    return float((logits.softmax(-1) if response == "probability" else logits)[0, target])
