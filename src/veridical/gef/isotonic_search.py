"""Our search for the end of a path: bisection on a fit of the agreement that only falls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import ModelError
from veridical.functional import isotonic_fit
from veridical.gef.agreement import agreements, chance_of
from veridical.gef.worlds import Worlds
from veridical.values.task import Task

FIRST, STEP, LAST = 0.2, 0.1, 10.2
GRID = tuple(round(FIRST + STEP * i, 10) for i in range(round((LAST - FIRST) / STEP) + 1))
"""The levels at which a path may end."""
RESAMPLES = 200
GLANCE = 5
"""Draws made at a time: a level far above the goal needs no more than that."""
NEAR = 0.3
"""Levels around the crossing are looked at until they are so near, as a share; between them is a line."""


class Search:
    """The agreement at the levels that were looked at, and a fit that only falls."""

    def __init__(self, task: Task, worlds: Worlds, draws: int, key: Key) -> None:
        self._asked = task, worlds, key
        self._draws = draws
        self.chance, self.slack = chance_of(task)
        self.seen: dict[int, Tensor] = {}

    def finite(self, place: int) -> bool:
        """Whether every answer at a level is finite, looking first if need be."""
        if place not in self.seen:
            self._look(place)
        return not bool(self.seen[place].isnan().any())

    def _ask(self, place: int, draws: range) -> Tensor:
        task, worlds, key = self._asked
        return agreements(task, worlds, GRID[place], draws, key / place)

    def _look(self, place: int) -> None:
        seen = self._ask(place, range(min(GLANCE, self._draws)))
        while len(seen) < self._draws and not bool(seen.isnan().any()):
            # far above what is looked for is far above it with any number of draws; and where chance keeps
            # nothing and no draw did, that is the floor (a level that ends the path is completed later)
            margin = 3 * max(float(seen.std()) / len(seen) ** 0.5, 0.02)
            if float(seen.mean()) - margin > self.goal or float(seen.max()) <= self.chance == 0:
                break
            seen = self._more(place, seen, GLANCE)
        self.seen[place] = seen

    def _more(self, place: int, seen: Tensor, count: int) -> Tensor:
        return torch.cat([seen, self._ask(place, range(len(seen), min(len(seen) + count, self._draws)))])

    def complete(self, place: int) -> bool:
        """Make all draws of a level; whether there were fewer."""
        seen = self.seen[place]
        if len(seen) < self._draws:
            self.seen[place] = self._more(place, seen, self._draws)
        return len(seen) < self._draws

    @property
    def places(self) -> list[int]:
        """The levels with finite answers, in order."""
        return sorted(place for place, seen in self.seen.items() if not bool(seen.isnan().any()))

    @property
    def goal(self) -> float:
        """The agreement at which nothing of the model is left: within the tolerance of its floor."""
        places = self.places
        floor = float(self.fit(self.means)[-1]) if places else self.chance
        return max(self.chance, floor) + self.slack

    @property
    def means(self) -> Tensor:
        return torch.stack([self.seen[place].mean() for place in self.places])

    def fit(self, means: Tensor) -> Tensor:
        """The falling fit of means (..., levels), each worth its number of draws."""
        counts = torch.tensor([float(len(self.seen[place])) for place in self.places], dtype=torch.float64)
        return isotonic_fit(means, counts.expand_as(means))

    def crossing(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """Which level is the first at the goal, and where on the line from the one before it that is."""
        fitted = self.fit(means)
        goal = fitted[..., -1:].clamp(min=self.chance) + self.slack
        first = (fitted <= goal).double().argmax(-1, keepdim=True)
        sigmas = torch.tensor([GRID[place] for place in self.places], dtype=torch.float64)
        before = (first - 1).clamp(min=0)
        above, under = fitted.gather(-1, before), fitted.gather(-1, first)
        share = ((above - goal) / (above - under).clamp(min=1e-12)).clamp(0, 1)
        reached = sigmas[before] + torch.where(first > 0, share, 1.0) * (sigmas[first] - sigmas[before])
        return first[..., 0], reached[..., 0]


def isotonic(task: Task, worlds: Worlds, draws: int, key: Key) -> dict[str, Any]:
    """Where a falling fit of the agreement comes down to its floor, by bisection on the grid."""
    search, last = Search(task, worlds, draws, key), len(GRID) - 1
    if not (whole := search.finite(last)):
        low, high = -1, last
        while high - low > 1:
            middle = _between(low, high)
            low, high = (middle, high) if search.finite(middle) else (low, middle)
        last = low
    if last < 0:
        raise ModelError(
            f"the model answers NaN or infinity under noise of {FIRST:g} already, the weakest that is tried; "
            "give a path of your own (path=...), or a model in float32"
        )
    while True:
        places = search.places
        crossing = search.crossing(search.means)
        end, sigma = int(crossing[0]), float(crossing[1])
        before = places[end - 1] if end else -1
        fine = before >= 0 and GRID[places[end]] - GRID[before] <= NEAR * GRID[places[end]]
        found = fine or places[end] - before <= 1 or not search.finite(_between(before, places[end]))
        if found and not search.complete(places[end]):
            break
    means, fitted = search.means, search.fit(search.means)
    reason = "chance" if float(fitted[end]) <= search.chance + search.slack else "plateau"
    if reason == "plateau" and not whole:
        reason = "answers beyond are not finite"
    return {
        "sigma_max": _on_grid(sigma),
        "reason": reason,
        "searched": tuple(GRID[place] for place in places),
        "agreement": tuple(means.tolist()),
        "fitted": tuple(fitted.tolist()),
        "interval": _interval(search, key),
        "draws": tuple(len(search.seen[place]) for place in places),
    }


def _on_grid(sigma: float) -> float:
    """The level of the grid at or before this noise."""
    return GRID[max(0, int((sigma - FIRST) / STEP + 1e-9))]


def _between(low: int, high: int) -> int:
    """The grid's level in the geometric middle of two, strictly between them; low may lie before the grid."""
    below = GRID[low] if low >= 0 else FIRST - STEP
    middle = round(((below * GRID[high]) ** 0.5 - FIRST) / STEP)
    return min(max(middle, low + 1), high - 1)


def _interval(search: Search, key: Key) -> tuple[float, float]:
    """Where sigma_max lies in 95 of 100 resamples of the draws."""
    means = []
    for place in search.places:
        seen = search.seen[place]
        pick = keyed.integers(key / "resample" / place, torch.arange(RESAMPLES), 0, len(seen), len(seen))
        means.append(seen[pick].mean(-1))
    ordered = search.crossing(torch.stack(means, -1))[1].sort().values.tolist()
    return _on_grid(ordered[RESAMPLES // 40]), _on_grid(ordered[-1 - RESAMPLES // 40])
