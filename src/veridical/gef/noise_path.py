"""The noise path: how much noise it takes until the model predicts by chance.

A path is given by the caller or searched on the task: the agreement of perturbed models with the model itself
falls with the noise, and the path ends where nothing of it is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError, ModelError
from veridical.gef.perturbed_model import Perturbation, PerturbedModels
from veridical.values.task import Task

LOWEST = 1e-3
"""The first level of every path that was found."""
MAX_SAMPLES = 256
"""Samples on which a path is searched."""
Rule = Literal["isotonic", "published"]
FIRST, STEP, LAST = 0.2, 0.1, 10.2
GRID = tuple(round(FIRST + STEP * i, 10) for i in range(round((LAST - FIRST) / STEP) + 1))
"""The levels at which a path may end."""
RESAMPLES = 200
GLANCE = 5
"""Draws made at a time: a level far above the goal needs no more than that."""
NEAR = 0.3
"""Levels around the crossing are looked at until they are so near, as a share; between them is a line."""


@dataclass(frozen=True)
class NoisePath:
    """Noise levels from nearly none to chance, and why the search ended there."""

    levels: tuple[float, ...]
    """The levels, rising."""
    sigma_max: float
    """The last of them."""
    reason: str
    """Why the search ended there."""
    rule: str
    """The rule of the search, or "given"."""
    chance: float
    """The agreement that means nothing."""
    searched: tuple[float, ...] = ()
    """The levels that were tried."""
    agreement: tuple[float, ...] = ()
    """The mean agreement with the unperturbed predictions there (a regression: R^2 of the outputs)."""
    fitted: tuple[float, ...] = ()
    """Its fit that only falls."""
    interval: tuple[float, float] = (float("nan"), float("nan"))
    """95% for `sigma_max`, over the draws."""
    rows: int = 0
    """Rows asked by the search."""
    draws: tuple[int, ...] = ()
    """Noisy models at each level tried."""

    @classmethod
    def given(cls, levels: Sequence[float]) -> NoisePath:
        """A path of the caller's own."""
        own = tuple(levels)
        rising = all(low < high for low, high in pairwise(own))
        if not own or not all(math.isfinite(level) and level > 0 for level in own) or not rising:
            raise InputError(f"a noise path is positive and rising, got {own}")
        return cls(own, own[-1], "given", "given", float("nan"))

    def to_json(self) -> dict[str, Any]:
        """The path as plain data, for the provenance of the scores that rest on it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        if self.rule == "given":
            return f"a given path up to {self.sigma_max:g}"
        low, high = self.interval
        spread = "" if low != low else f" [{low:g}, {high:g}]"
        return (
            f"{len(self.levels)} levels up to {self.sigma_max:.3g}{spread} ({self.reason}; "
            f"{self.rule} rule, chance {self.chance:.3g}, {self.rows} rows asked)"
        )


def even_levels(sigma_max: float, count: int) -> tuple[float, ...]:
    """`count` levels evenly spaced from 1e-3 to sigma_max; a single level is sigma_max itself."""
    if count < 1:
        raise InputError(f"a path needs at least one level, got {count}")
    if count == 1:
        return (sigma_max,)
    return tuple(LOWEST + (sigma_max - LOWEST) * i / (count - 1) for i in range(count))


@checked
def find_path(
    task: Task,
    levels: Count = 5,
    rule: Rule = "isotonic",
    perturb: Perturbation = "weights",
    draws: Count = 20,
    key: Key = Key(0),  # noqa: B008 (frozen)
) -> NoisePath:
    """Search the noise at which the model's predictions agree with its own only by chance.

    `isotonic` (ours): on the grid 0.2, 0.3, ... 10.2 the first level at which a falling fit of the mean
    agreement is within max(0.1/C, 0.01) of its floor: chance, 1/C, or else ("plateau") what is left under
    the strongest noise. The crossing is found by bisection with `draws` draws per level, fewer where the
    agreement is plainly higher. Where answers are not finite the path ends before, and says so.
    `published`: one draw per level, stop at |agreement - 1/C| <= max(0.1/C, 0.01) or after 100 steps, mean of
    5 runs.
    """
    if rule == "isotonic" and draws < 2:
        raise InputError(f"the isotonic rule needs several draws per level, got {draws}")
    # a task of classes has no inputs of its own; its rows are what the model is seen to change on
    task = task if task.members is None else task.members
    few = task if len(task) <= MAX_SAMPLES else task[_some(task, key)]
    before = task.predictor.meter.cost
    search = isotonic if rule == "isotonic" else _published
    found = search(few, PerturbedModels(few, perturb), draws, key / "path")
    rows = (task.predictor.meter.cost - before).forward
    own = even_levels(found["sigma_max"], levels)
    return NoisePath(levels=own, rule=rule, chance=chance_of(task)[0], rows=rows, **found)


# --- agreement with the unperturbed model ---------------------------------------------


def _some(task: Task, key: Key) -> Tensor:
    """A keyed choice of samples: sets are often sorted by class, so the first ones would not do."""
    return keyed.bits(key / "some", task.draw_ids, 0, 1)[:, 0].argsort()[:MAX_SAMPLES].sort().values


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


def agreements(task: Task, models: PerturbedModels, sigma: float, draws: range, key: Key) -> Tensor:
    """The agreement of each of these draws at one level."""
    out = []
    for draw in draws:
        out.append(agreement(task, models.outputs(models.at(sigma, key / draw))))
    return torch.stack(out).cpu()


# --- the searches ---------------------------------------------------------------------


class Search:
    """The agreement at the levels that were looked at, and a fit that only falls."""

    def __init__(self, task: Task, models: PerturbedModels, draws: int, key: Key) -> None:
        self._asked = task, models, key
        self._draws = draws
        self.chance, self.slack = chance_of(task)
        self.seen: dict[int, Tensor] = {}

    def finite(self, place: int) -> bool:
        """Whether every answer at a level is finite, looking first if need be."""
        if place not in self.seen:
            self._look(place)
        return not bool(self.seen[place].isnan().any())

    def _ask(self, place: int, draws: range) -> Tensor:
        task, models, key = self._asked
        return agreements(task, models, GRID[place], draws, key / place)

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
        from scipy.optimize import isotonic_regression

        counts = [len(self.seen[place]) for place in self.places]
        rows = means.double().reshape(-1, len(counts)).numpy()
        fitted = [isotonic_regression(row, weights=counts, increasing=False).x.tolist() for row in rows]
        return torch.tensor(fitted, dtype=torch.float64).reshape(means.shape)

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


def isotonic(task: Task, models: PerturbedModels, draws: int, key: Key) -> dict[str, Any]:
    """Where a falling fit of the agreement comes down to its floor, by bisection on the grid."""
    search, last = Search(task, models, draws, key), len(GRID) - 1
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


def _published(task: Task, models: PerturbedModels, draws: int, key: Key) -> dict[str, Any]:
    """The rule of the published program."""
    chance, slack = chance_of(task)
    ends, stopped = [], 0
    for run in range(5):
        for sigma in GRID[:100]:
            level = float(agreements(task, models, sigma, range(1), key / run / str(sigma))[0])
            if math.isnan(level):
                # answers that are not finite end the path at the level before
                sigma = max(sigma - STEP, FIRST)
                break
            near = level <= 0 if task.head == "regression" else abs(level - chance) <= slack
            if near:
                stopped += 1
                break
        ends.append(sigma)
    reason = f"{stopped} of 5 runs met chance" if stopped else "no run met chance in 100 steps"
    return {"sigma_max": sum(ends) / len(ends), "reason": reason, "searched": tuple(ends)}
