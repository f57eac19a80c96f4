"""Shapley values by the definition; Sobol indices and HSIC by loops."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from veridical.core import key as keyed


def exact_shapley(task_or_game: Any, fill_or_count: float | int) -> Any:
    """By the definition: for a task (N, V) with a constant fill, or a game over `count` players (list)."""
    if callable(task_or_game) and not hasattr(task_or_game, "inputs"):
        return _exact(task_or_game, int(fill_or_count))
    task, fill = task_or_game, float(fill_or_count)
    found = []
    for x, target in zip(task.inputs, task.targets.tolist(), strict=True):

        def game(kept: tuple[int, ...], x: Tensor = x, target: int = target) -> float:
            row = torch.full_like(x, fill)
            row[list(kept)] = x[list(kept)]
            with torch.no_grad():
                return float(task.model(row[None])[0, target])

        found.append(_exact(game, len(x)))
    return torch.tensor(found, dtype=task.inputs.dtype)


def _exact(game: Any, players: int) -> list[float]:
    values = []
    for i in range(players):
        others = [j for j in range(players) if j != i]
        total = 0.0
        for size in range(players):
            weight = math.factorial(size) * math.factorial(players - size - 1) / math.factorial(players)
            for kept in itertools.combinations(others, size):
                total += weight * (game((*kept, i)) - game(kept))
        values.append(total)
    return values


def _coins(task: Any, key: Any, draws: int) -> Tensor:
    """(N, draws, V): what is removed, from the same keyed coins."""
    return keyed.bernoulli(key, task.draw_ids, torch.arange(draws), task.space.n_features, 0.5)


def _answer(task: Any, i: int, removed: Tensor, fill: float) -> float:
    row = task.inputs[i].clone()
    row[removed] = fill
    with torch.no_grad():
        return float(task.model(row[None])[0, task.targets[i]])


def slow_sobol(task: Any, explainer: Any, key: Any, fill: float) -> Tensor:
    first = _coins(task, key / "sobol" / "coins", explainer.draws)
    out = torch.zeros(task.inputs.shape, dtype=torch.float64)
    for i in range(len(task)):
        base = [_answer(task, i, removed, fill) for removed in first[i]]
        mean = sum(base) / len(base)
        variance = sum((b - mean) ** 2 for b in base) / (len(base) - 1)
        for j in range(task.space.n_features):
            total = 0.0
            for d in range(explainer.draws):
                moved = first[i, d].clone()
                moved[j] = ~moved[j]
                # a coin drawn anew comes out the other way half of the time
                total += (base[d] - _answer(task, i, moved, fill)) ** 2 / 2
            out[i, j] = total / explainer.draws / (2 * variance)
    return out


def slow_hsic(task: Any, explainer: Any, key: Any, fill: float) -> Tensor:
    masks = _coins(task, key / "hsic" / "masks", explainer.draws)
    n = explainer.draws
    centre = torch.eye(n, dtype=torch.float64) - 1 / n
    out = torch.zeros(task.inputs.shape, dtype=torch.float64)
    for i in range(len(task)):
        y = torch.tensor([_answer(task, i, removed, fill) for removed in masks[i]], dtype=torch.float64)
        apart = (y[:, None] - y[None]).abs()
        width = apart.flatten().median()
        alike = torch.exp(-((apart / width) ** 2) / 2)
        for j in range(task.space.n_features):
            same = (masks[i, :, j][:, None] == masks[i, :, j][None]).double()
            out[i, j] = torch.trace(same @ centre @ alike @ centre) / (n - 1) ** 2
    return out
