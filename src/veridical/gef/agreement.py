"""How far a noisy model still agrees with the model itself, and what agreement means nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.gef.worlds import Worlds
from veridical.values.task import Task


def chance_of(task: Task) -> tuple[float, float]:
    """What agreement means nothing, and how near counts as there; each of several labels is yes or no."""
    if task.head == "regression":
        return 0.0, 0.0
    if task.head == "generation":  # one of a whole vocabulary at each place of the answer
        return 0.0, 0.01
    classes = 2 if task.head == "multilabel" else task.n_outputs
    return 1 / classes, max(0.1 / classes, 0.01)


def agreement(task: Task, outputs: Tensor) -> Tensor:
    """Share of predictions, or of tokens of an answer, kept; for a regression R^2 of outputs, at least -1.

    NaN where an answer is not finite, as very large weights may give: nothing can be compared there.
    """
    clean = task.outputs
    if task.head == "regression":
        left = (outputs.double() - clean.double()).square().sum()
        spread = (clean.double() - clean.double().mean(0)).square().sum().clamp(min=1e-300)
        kept = (1 - left / spread).clamp(min=-1.0)
    elif task.head == "generation":
        kept = outputs[:, 1].double().mean()
    elif task.head == "multilabel":
        kept = ((outputs > 0) == (clean > 0)).double().mean()
    else:
        kept = (outputs.argmax(-1) == clean.argmax(-1)).double().mean()
    return torch.where(outputs.isfinite().all(), kept, torch.nan)


def agreements(task: Task, worlds: Worlds, sigma: float, draws: range, key: Key) -> Tensor:
    """The agreement of each of these draws at one level."""
    out = []
    with worlds.ahead(key / draw for draw in draws):
        for draw in draws:
            world = worlds.at(sigma, key / draw)
            with world.session():
                out.append(agreement(task, world.predictor.chunk(world.inputs, world.side)))
    return torch.stack(out).cpu()
