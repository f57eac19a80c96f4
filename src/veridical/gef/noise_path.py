"""The noise path: how much noise it takes until nothing is left of the model's predictions.

A path is given by the caller or searched: the agreement of perturbed models with the model itself falls with
the noise, and the path ends where a tenth of it is left. The search runs on the reference rows where there
are any, so that a part of a task has the path of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError, ModelError
from veridical.functional import has_spread, round_to_grid, spearman
from veridical.gef.perturbed_model import Perturbation, PerturbedModels
from veridical.models.predictor import take_side
from veridical.values.task import Task

LOWEST = 1e-3
"""The first level of every path that was found."""
MAX_SAMPLES = 32
"""Rows on which a path is searched: agreement varies far more between perturbed models than between rows."""
PUBLISHED_SAMPLES = 256
"""The same for the published rule, whose tolerance of 0.01 few rows step over; its program takes all."""
Rule = Literal["fitted", "published"]
WEAKEST, STRONGEST = 0.02, 10.2
"""Noise at which the search begins and above which it does not go."""
FIRST, STEP = 0.2, 0.1
"""The first level of the published rule, and the step to the next."""
LEFT = 0.1
"""The share of the agreement that is left where a path ends."""
SWEEP = 10
"""Levels, evenly spaced on a logarithmic scale, at which the search begins."""
MIN_PAIRS = 50
"""Pairs before the search may be content: the error of fewer is itself too uncertain."""
SHARES = (0.7, 0.4, 0.2, 0.1, 0.1)
"""Agreements around which the search goes on: the end counts twice."""
PRECISION = 0.07
"""Standard error of log sigma_max at which the search is content."""
SHRINK = 1.2
"""Where answers are not finite the search goes on at noise weaker by this factor."""


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
    searched: tuple[float, ...] = ()
    """The levels that were tried, rising."""
    agreement: tuple[float, ...] = ()
    """The mean agreement with the unperturbed model there: 1 is all of it, 0 is chance."""
    fitted: tuple[float, ...] = ()
    """The fitted curve there, which only falls."""
    interval: tuple[float, float] = (float("nan"), float("nan"))
    """95% for `sigma_max`, over the perturbed models of the search."""
    rows: int = 0
    """Rows evaluated by the search."""
    draws: tuple[int, ...] = ()
    """Perturbed models at each level tried."""
    crossing: float = float("nan")
    """Where the fitted curve says that a tenth is left; beyond `sigma_max` if that was not reached."""
    pulls: tuple[float, ...] = ()
    """How far each pair of perturbed models pulled the logarithm of the crossing; their sum is 0."""

    @classmethod
    def given(cls, levels: Sequence[float]) -> NoisePath:
        """A path of the caller's own."""
        own = tuple(levels)
        rising = all(low < high for low, high in pairwise(own))
        if not own or not all(math.isfinite(level) and level > 0 for level in own) or not rising:
            raise InputError(f"a noise path is positive and rising, got {own}")
        return cls(own, own[-1], "given", "given")

    def of_draw(self, draw: int, draws: int) -> tuple[float, ...]:
        """The levels of one of several draws: each ends where its own part of the search would have ended.

        So scores differ between draws as paths found anew would make them differ. Parts are told apart by
        their pulls on the common fit (linear pseudo-values), whose mean over the draws is the path's own end.
        """
        if draws == 1 or not self.pulls:
            return self.levels
        end = math.log(self.crossing) + draws * sum(self.pulls[draw::draws])
        return even_levels(_within(end, self.searched[0], self.searched[-1]), len(self.levels))

    def to_json(self) -> dict[str, Any]:
        """The path as plain data, for the provenance of the scores that rest on it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        if self.rule == "given":
            return f"a given path up to {self.sigma_max:g}"
        low, high = self.interval
        spread = "" if low != low else f" [{low:.3g}, {high:.3g}]"
        return (
            f"{len(self.levels)} levels up to {self.sigma_max:.3g}{spread} ({self.reason}; "
            f"{self.rule} rule, {self.rows} rows evaluated)"
        )


def even_levels(sigma_max: float, count: int) -> tuple[float, ...]:
    """`count` levels evenly spaced from 1e-3 to sigma_max; a single level is sigma_max itself."""
    if count < 1:
        raise InputError(f"a path needs at least one level, got {count}")
    if count == 1:
        return (sigma_max,)
    return tuple(LOWEST + (sigma_max - LOWEST) * i / (count - 1) for i in range(count))


def _within(logarithm: float, low: float, high: float) -> float:
    """The number of this logarithm, or the end of the range that it lies beyond."""
    return math.exp(min(max(logarithm, math.log(low)), math.log(high)))


@checked
def find_path(
    task: Task,
    levels: Count = 5,
    rule: Rule = "fitted",
    perturb: Perturbation = "weights",
    draws: Count = 800,
    key: Key = Key(0),  # noqa: B008 (frozen)
) -> NoisePath:
    """Search the noise at which nothing is left of the model's predictions but chance.

    `fitted` (ours): a logistic curve in log(sigma) is fitted to the agreement of perturbed models with the
    model (see `agreement`), and the path ends where it says that a tenth is left. Models come in pairs of
    opposite noise, first over the whole range from 0.02 to 10.2, then where the curve falls, until the
    standard error of log(sigma_max) is below 0.07 or `draws` models were evaluated (the first 20 always are).
    If more than a tenth is left at 10.2 the path ends there ("plateau"); where answers are not finite it ends
    before, and says so.
    `published`: one draw per level from 0.2 on by 0.1, stop where the share of predictions kept is within
    max(0.1/C, 0.01) of 1/C or after 100 steps, mean of 5 runs.

    Either is searched on the reference rows, or on the samples where there are none: on at most 32 of them,
    or 256 by the published rule.
    """
    # a task of classes has no inputs of its own; its rows are what the model is seen to change on
    most = MAX_SAMPLES if rule == "fitted" else PUBLISHED_SAMPLES
    rows = calibration_rows(task if task.members is None else task.members, most)
    before = task.predictor.meter.cost
    search = _fitted if rule == "fitted" else _published
    found = search(rows, PerturbedModels(rows, perturb), draws, key / "path")
    asked = (task.predictor.meter.cost - before).forward
    return NoisePath(even_levels(found["sigma_max"], levels), rule=rule, rows=asked, **found)


def calibration_rows(task: Task, most: int = MAX_SAMPLES) -> Task:
    """The rows on which a path is searched, the same ones whichever part of a task asks."""
    if task.train is None or (len(task.side) and not len(task.train_side)):
        if len(task) <= most:
            return task
        # sets are often sorted by class, so the first ones would not do
        return task[_chosen(task.draw_ids, most)]
    numbers = torch.arange(len(task.train), device=task.device)
    some = _chosen(numbers, most)
    return task.changed(
        alone=True,
        inputs=task.train[some],
        side=take_side(task.train_side, some),
        ids=numbers[some],
        draw_ids=numbers[some],
        labels=None,
        masks=None,
        targets=torch.zeros(len(some), dtype=torch.int64, device=task.device),  # nothing is explained
    )


def _chosen(ids: Tensor, most: int) -> Tensor:
    return keyed.bits(Key(0) / "path rows", ids, 0, 1)[:, 0].argsort()[:most].sort().values


# --- agreement with the unperturbed model ---------------------------------------------


def agreement(task: Task, outputs: Tensor) -> float:
    """How much of the model's predictions is left: 1 for all of it, 0 for what chance would leave.

    Classes and labels: the share of predictions kept beyond that of equal predictions drawn at random
    (Cohen's kappa), so a model that collapses onto one class keeps nothing. Where all unperturbed predictions
    are equal, chance is 1/C. A regression: Spearman's correlation with the unperturbed outputs, the mean over
    outputs, so that all units of a layer have one path. An answer that is generated: the share of its tokens.
    NaN where an answer is not finite.
    """
    if not bool(outputs.isfinite().all()):
        return math.nan
    if task.head == "generation":
        return float(outputs[:, 1].double().mean())
    if task.head == "regression":
        both = [round_to_grid(each.T, task.predictor.rounding) for each in (task.outputs, outputs)]
        # outputs that have become all equal follow nothing; those that were have nothing to follow
        return float(spearman(*both).nan_to_num(0.0)[has_spread(both[0])].mean())
    clean, now = (predicted(task, each) for each in (task.outputs, outputs))
    classes = 2 if task.head == "multilabel" else task.n_outputs
    shares = [torch.bincount(each, minlength=classes) / len(each) for each in (clean, now)]
    luck = float(shares[0] @ shares[1]) if float(shares[0].max()) < 1 else 1 / classes
    return (float((clean == now).double().mean()) - luck) / (1 - luck)


def predicted(task: Task, outputs: Tensor) -> Tensor:
    """The classes of these outputs, or whether each of several labels is given, in one row."""
    return (outputs > 0).long().flatten() if task.head == "multilabel" else outputs.argmax(-1)


# --- the searches ---------------------------------------------------------------------


@dataclass
class Search:
    """Pairs of perturbed models at several levels, and the curve through their agreement."""

    task: Task
    models: PerturbedModels
    key: Key
    top: float = STRONGEST
    """The strongest noise under which answers are finite, as far as is known."""
    noise: list[float] = field(default_factory=list)
    """The logarithm of each pair's level."""
    kept: list[float] = field(default_factory=list)
    """The mean agreement of each pair."""
    place: float = 0.0
    """The logarithm of the level at which the curve is 1/2."""
    slope: float = 2.0
    """How steeply the curve falls there."""

    def ask(self, sigma: float) -> None:
        """Evaluate a pair of models under opposite noise; answers that are not finite lower the top."""
        key = self.key / len(self.noise) / f"{sigma:.6g}"
        outputs = self.models.outputs
        pair = [agreement(self.task, outputs(self.models.at(size, key))) for size in (sigma, -sigma)]
        if any(map(math.isnan, pair)):
            self.top = sigma / SHRINK
            there = [(x, y) for x, y in zip(self.noise, self.kept, strict=True) if x <= math.log(self.top)]
            self.noise, self.kept = [x for x, _ in there], [y for _, y in there]
            return
        self.noise.append(math.log(sigma))
        self.kept.append(sum(pair) / 2)

    def fit(self) -> tuple[float, Tensor]:
        """Fit the curve; the logarithm of the level where a tenth is left, and each pair's pull on it."""
        from scipy.optimize import least_squares

        x, y = np.array(self.noise), np.array(self.kept)

        def slopes(p: Any) -> Any:
            high = _curve(x, *p)
            return np.stack([p[1] * high * (1 - high), (p[0] - x) * high * (1 - high)], 1)

        bounds = ([math.log(WEAKEST) - 2, 0.5], [math.log(STRONGEST) + 2, 10.0])
        found = least_squares(lambda p: _curve(x, *p) - y, (self.place, self.slope), slopes, bounds)
        self.place, self.slope = map(float, found.x)
        turn = np.array([1.0, -math.log(1 / LEFT - 1) / self.slope**2])
        pulls = found.jac @ np.linalg.pinv(found.jac.T @ found.jac) @ turn * -found.fun
        return self.level(LEFT), torch.from_numpy(pulls - pulls.mean())

    def level(self, left: float) -> float:
        """The logarithm of the level at which the curve has come down to this."""
        return self.place + math.log(1 / left - 1) / self.slope


def _curve(x: Any, place: float, slope: float) -> Any:
    return 1 / (1 + np.exp(np.clip(slope * (x - place), -50, 50)))


def _fitted(task: Task, models: PerturbedModels, draws: int, key: Key) -> dict[str, Any]:
    """Where the curve through the agreement of pairs of perturbed models comes down to a tenth."""
    spread = has_spread(round_to_grid(task.outputs.T, task.predictor.rounding))
    if task.head == "regression" and not bool(spread.any()):
        raise InputError(
            f"the model gives the same output for all {len(task)} rows on which its noise path would be "
            "searched, so noise cannot be seen to change their order; give a path (path=(0.1, 0.5, 1.0)), or "
            "reference rows that differ (train=...)"
        )
    search = Search(task, models, key)
    step = (STRONGEST / WEAKEST) ** (1 / (SWEEP - 1))
    sigma = STRONGEST
    while len(search.noise) < SWEEP and sigma > WEAKEST / SHRINK:
        search.ask(sigma)
        sigma = min(sigma / step, search.top) if search.noise else search.top
    if not search.noise:
        raise ModelError(
            f"the model answers NaN or infinity under noise of {WEAKEST:g} already, the weakest that is "
            "tried; give a path of your own (path=...), or a model in float32"
        )
    low = math.log(WEAKEST)
    search.place = low + float(np.clip(np.mean(search.kept), 0.05, 0.95)) * (math.log(search.top) - low)
    while True:
        end, pulls = search.fit()
        error = float(pulls.square().sum().sqrt()) * (len(pulls) / (len(pulls) - 2)) ** 0.5
        low, high = (_within(end + side * 1.96 * error, WEAKEST, search.top) for side in (-1, 1))
        pairs = len(search.noise)
        if pairs >= MIN_PAIRS and math.log(high / low) <= 2 * 1.96 * PRECISION:
            break
        if 2 * (pairs + len(SHARES)) > draws:
            break
        for left in SHARES:
            search.ask(_within(search.level(left), WEAKEST, search.top))
    reason = "chance"
    if math.exp(end) > search.top:
        reason = "plateau" if search.top == STRONGEST else "answers beyond are not finite"
    levels = sorted(set(search.noise))
    each = [[y for x, y in zip(search.noise, search.kept, strict=True) if x == level] for level in levels]
    return {
        "sigma_max": _within(end, WEAKEST, search.top),
        "reason": reason,
        "searched": tuple(math.exp(level) for level in levels),
        "agreement": tuple(sum(own) / len(own) for own in each),
        "fitted": tuple(float(_curve(level, search.place, search.slope)) for level in levels),
        "interval": (low, high),
        "draws": tuple(2 * len(own) for own in each),
        "crossing": math.exp(end),
        "pulls": tuple(pulls.tolist()),
    }


def _published(task: Task, models: PerturbedModels, draws: int, key: Key) -> dict[str, Any]:
    """The rule of the published program; an output that is no class has come to chance at agreement 0."""
    classes = {"multilabel": 2, "regression": 0, "generation": 0}.get(task.head, task.n_outputs)
    ends, stopped = [], 0
    for run in range(5):
        for step in range(100):
            sigma = round(FIRST + STEP * step, 10)
            outputs = models.outputs(models.at(sigma, key / run / str(sigma)))
            if not bool(outputs.isfinite().all()):
                # answers that are not finite end the path at the level before
                sigma = max(sigma - STEP, FIRST)
                break
            if classes:
                same = predicted(task, outputs) == predicted(task, task.outputs)
                near = abs(float(same.double().mean()) - 1 / classes) <= max(0.1 / classes, 0.01)
            else:
                near = agreement(task, outputs) <= 0.01
            if near:
                stopped += 1
                break
        ends.append(sigma)
    reason = f"{stopped} of 5 runs met chance" if stopped else "no run met chance in 100 steps"
    return {"sigma_max": sum(ends) / len(ends), "reason": reason, "searched": tuple(ends)}
