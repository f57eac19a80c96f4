"""What the robustness metrics share: neighbours of each input, and the maps made again at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.core.allowed import Count, Positive
from veridical.functional import rms_normalise
from veridical.metrics.base import ExplainerMetric
from veridical.metrics.input_noise import movable, reference_range, uniform_draws, why_no_noise
from veridical.metrics.re_explaining import Maps, at_once, explaining, stacked
from veridical.metrics.types import Explainer, Key, Task


@dataclass(frozen=True)
class NeighbourMetric(ExplainerMetric):
    """Base of metrics that explain `draws` neighbours x + u of every input.

    As many draws as fit one chunk are explained in one batched call. u is uniform on [-radius, radius] in
    every element; token ids are moved at their embeddings.
    """

    draws: Count = 10
    """Neighbours per sample."""
    radius: Positive = 0.1
    """The most that any element moves; see `in_ranges` for its unit."""
    in_ranges: bool = False
    """Whether the radius is in units of each element's range over the reference rows, not of the input."""
    normalise: bool = True
    """Whether maps are divided by their root mean square before they are compared."""

    def why_not(self, task: Task) -> str | None:
        if self.in_ranges and task.train is None:
            return "in_ranges takes each element's range from reference rows; give the task train=..."
        return super().why_not(task) or why_no_noise(task)

    def neighbours(self, task: Task, key: Key, times: int = 1) -> Iterator[Task]:
        """The movable task at its neighbours, `times` draws of all samples after each other in one task."""
        for first in range(0, self.draws, times):
            draws = range(first, min(first + times, self.draws))
            yield stacked(task, len(draws), self._near(task, key, draws))

    def together(self, task: Task, key: Key) -> tuple[Task, Task]:
        """The movable task with all its neighbours behind it, and these alone.

        They are the same for every method that is judged, and kept: for when one chunk holds them all.
        """

        def make() -> tuple[Task, Task]:
            inputs = torch.cat([task.inputs, self._near(task, key, range(self.draws))])
            near = stacked(task, self.draws, inputs[len(task) :])
            return stacked(task, 1 + self.draws, inputs), near

        kept: tuple[Task, Task] = task.latest(f"neighbours, {self.name}", (self, key), make)
        return kept

    def _near(self, task: Task, key: Key, draws: range) -> Tensor:
        reach = self.radius * reference_range(task) if self.in_ranges else self.radius
        return (task.inputs + reach * uniform_draws(task, key / "neighbour", draws)).flatten(0, 1)

    def comparable(self, values: Tensor, task: Task) -> Tensor:
        """Maps (..., N, V) of a task in float64, normalised or not; 0 at features that do not exist."""
        if self.normalise:
            return rms_normalise(values, where=task.space.valid)
        values = values.double()
        return values if task.space.valid is None else values.masked_fill(~task.space.valid, 0.0)


def explained_pairs(
    metric: NeighbourMetric, task: Task, explainer: Explainer, key: Key, compare: Callable[..., Tensor]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The clean maps (N, V), `compare(near task, clean maps, near maps)` for every draw (N, draws), flags.

    As many draws as fit a chunk are explained together: the near task holds k times the samples, the maps
    are (k, N, V), and `compare` gives (k, N). A method with draws of its own gets a fresh key each time, as
    it is judged with its own noise.
    """
    task = movable(task)
    times = at_once(explainer, task, 1 + metric.draws)
    rows = []
    with explaining(explainer, task) as explain:
        if times > metric.draws:
            world, near = metric.together(task, key)
            maps = metric.comparable(explain(world, key / "clean").unflatten(0, (-1, len(task))), task)
            table = compare(near, maps[0], maps[1:])
            return maps[0], table.T.contiguous(), map_flags(explain, len(task))
        clean = metric.comparable(explain(task, key / "clean"), task)
        flags = map_flags(explain, len(task))
        for step, near in enumerate(metric.neighbours(task, key, times)):
            moved = explain(near, key / "explain" / step).unflatten(0, (-1, len(task)))
            rows.append(compare(near, clean, metric.comparable(moved, task)))
    return clean, torch.cat(rows).T.contiguous(), flags


def distance(before: Tensor, after: Tensor) -> Tensor:
    """Euclidean distance of rows that are float64 and 0 where features do not exist, as `maps` gives them."""
    return torch.linalg.vector_norm(before - after, dim=-1)


def map_flags(explain: Maps, count: int) -> dict[str, Tensor]:
    """Why the first `count` of the maps made last cannot be compared with anything."""
    zeros = explain.largest[:count] == 0
    return {"the map is all zeros": zeros, "no explanation": explain.missing[:count]}


def worst(table: Tensor) -> Tensor:
    """The largest entry of each row of distances that is a number; NaN where none is."""
    largest = table.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(-1)
    return largest.masked_fill_(largest == -torch.inf, torch.nan)


def nan_where_any(values: Tensor, flags: dict[str, Tensor]) -> Tensor:
    """`values` with NaN where one of the flags is raised."""
    any_raised = torch.stack([*flags.values()]).any(0)
    return values.masked_fill(any_raised, torch.nan)
