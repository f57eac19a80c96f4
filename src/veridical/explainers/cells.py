"""Neighbouring pixels or patches joined into cells, where there are more than the answers can tell apart."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from veridical.values.space import Space
from veridical.values.task import Task


def sides(space: Space) -> tuple[int, ...] | None:
    """How many features lie along each axis of an image, or None where they do not form a grid."""
    if space.kind not in ("pixel", "patch") or space.per_sample or space.valid is not None:
        return None
    labels = space.labels[0]
    counts = tuple(len(_along(labels, axis).unique()) for axis in range(labels.dim()))
    return counts if prod(counts) == space.n_features else None


def _along(labels: Tensor, axis: int) -> Tensor:
    return labels[tuple(slice(None) if i == axis else 0 for i in range(labels.dim()))]


def grid_cells(space: Space, across: int) -> tuple[Tensor, int] | None:
    """The cell of each feature (V,) of `across` cells along each axis at most, and how many there are."""
    grid = sides(space)
    if grid is None:
        return None
    device, cells, count = space.labels.device, torch.zeros(1, dtype=torch.int64), 1
    cells = cells.to(device)
    for side in grid:
        here = min(across, side)
        cells = (cells[:, None] * here + torch.arange(side, device=device) * here // side).flatten()
        count *= here
    return cells, count


def few_cells(space: Space, most: int) -> tuple[Tensor, int] | None:
    """Blocks of as few whole features as leave `most` cells at most; None where nothing has to be joined."""
    grid = sides(space)
    if grid is None or space.n_features <= most:
        return None
    block = next(k for k in range(1, max(grid) + 1) if prod(-(-side // k) for side in grid) <= max(1, most))
    cells = torch.zeros(1, dtype=torch.int64, device=space.labels.device)
    for side in grid:
        here = torch.arange(side, device=cells.device) // block
        cells = (cells[:, None] * -(-side // block) + here).flatten()
    return cells, int(cells.max()) + 1


def over_cells(task: Task, cells: Tensor, count: int) -> Task:
    """The same task whose features are the cells."""
    labels = task.space.labels
    space = Space("patch", task.space.input_shape, count, torch.where(labels < 0, -1, cells[labels]))
    return task.changed(space=space, masks=None, outputs=task.outputs)


def shared_out(values: Tensor, cells: Tensor) -> Tensor:
    """The values of cells (n, cells) in equal shares to their features (n, V), so that sums stay."""
    sizes = torch.bincount(cells, minlength=values.shape[-1])
    return (values / sizes)[:, cells]


def told(joined: tuple[Tensor, int] | None, features: int, answers: int) -> dict[str, str]:
    """What the provenance says of joined features, or of a fit with fewer answers than unknowns."""
    if joined is not None:
        return {"cells": f"{features} features were joined into {joined[1]} cells of neighbours"}
    if features > answers:
        return {"underdetermined": f"{answers} answers for {features} features: one fit of many"}
    return {}
