"""Is removal about the data at all? A check of the model: do masked inputs and near inputs show the same?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.functional import bootstrap_interval, round_to_grid
from veridical.functional.responses import grid_step
from veridical.models.predictor import repeat_side
from veridical.perturb.fills import Backgrounds, Fill, Marginal
from veridical.perturb.near_rows import NEIGHBOURS, STEP, single_moves, ways, why_no_near_rows
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given
from veridical.values.task import Task

LINE = 0.65
"""Where the interval of the agreement lies below it, removal is not about the data."""
WHOLE_LINE = 0.5
"""The same where features go all the way: an answer in steps, as of trees, agrees less with itself."""
WHOLE_NEIGHBOURS = 64
"""Reference rows that each feature goes all the way to: few of them cross a step."""
MOVED_GRID_STEPS = 100
"""How far the response must move to count as moved, in steps of the grid on which responses tie."""
MOVED_SHARE = 0.9
"""The share of samples in which it must."""
MOST_FEATURES = 32
"""Features of a sample whose effects are measured, drawn at random where there are more."""
DRAWS = 16
"""Random sets of removed features to which each feature is added, or from which it is taken."""
SAMPLES = 24
"""Samples on which it is checked."""
MIN_FEATURES = 3
"""With fewer that differ between neighbours there is nothing to correlate."""


@dataclass(frozen=True)
class NearData:
    """Whether removing features says anything about a model's behaviour on its data, or why nobody knows."""

    asked: bool
    why_not: str = ""
    agreement: float = math.nan
    """How much of what matters near the data matters under masks: the mean overlap over the samples."""
    low: float = math.nan
    high: float = math.nan
    about_data: bool | None = None
    """False where the interval lies below the line: the model answers masked inputs by another rule."""
    samples: int = 0
    step: float = math.nan
    """How far features were moved towards their neighbours', as a share of the way."""
    rows: int = 0
    """Rows that the check evaluated."""

    @property
    def reason(self) -> str:
        """Why removal is not asked, if so."""
        return f"this model answers inputs that do not occur by another rule ({self._measured})"

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        if not self.asked:
            return f"Whether removal is about the data was not checked: {self.why_not}."
        if self.about_data:
            return f"Removal is about the data: {self._measured}."
        return f"Removal is not about the data: {self.reason}."

    @property
    def _measured(self) -> str:
        return (
            "what matters near the data and what matters under masks overlap by "
            f"{self.agreement:.0%} [{self.low:.0%}, {self.high:.0%}] over {self.samples} samples"
        )


def rows_per_sample(task: Task) -> int:
    """How many rows the check evaluates for each of its samples, at most."""
    if why_no_near_rows(task) is not None:
        return 0
    count = min(MOST_FEATURES, int(task.space.counts(len(task)).min()))
    neighbours = NEIGHBOURS if task.differentiable else WHOLE_NEIGHBOURS
    return neighbours * count + DRAWS * (count + 1)


def check(task: Task, seed: int = 0, samples: int = SAMPLES) -> NearData:
    """Compare what moves the response near the data with what moves it under masks.

    Near effects: each feature alone goes a step towards each of the nearest reference rows in which it
    differs; mean |response change|, times how far removal takes the feature, over how far the step did.
    Removal effects: each feature is removed by the task's fill beside random sets of others; mean |response
    change|. Both are shares of their sum, and the agreement is the sum of the smaller share of each feature:
    1 for a linear model, less for one that follows another rule on masked rows, where other features matter.

    Parameters
    ----------
    task : Task
        The model, its samples, fill and reference rows.
    seed : int
        Seed of the random sets, and of what a fill draws.
    samples : int
        Samples that are compared: the first ones.

    Returns
    -------
    NearData
        The agreement with its interval, or why it was not measured.

    Examples
    --------
    >>> import veridical as vd
    >>> from veridical.auditing import near_data
    >>> near_data.check(vd.tasks.load("breast_cancer_logistic")).about_data
    True
    """
    some, key = task[:samples], Key(seed) / "near data"
    why = why_no_near_rows(some)
    if why is not None:
        return NearData(False, why)
    before = some.predictor.meter.cost
    features = _features(some, key)
    # what answers in steps, as trees do, may not show a small move
    for step in (STEP, 1.0) if some.differentiable else (1.0,):
        near, differs, moved = _near_effects(some, features, step, key)
        if moved >= MOVED_SHARE:
            break
    each = _overlap(near, _removal_effects(some, features, key), differs)
    each = each[torch.isfinite(each) & (differs.sum(1) >= MIN_FEATURES)]
    rows = (some.predictor.meter.cost - before).forward
    if moved < MOVED_SHARE:
        why = f"the response moves in {moved:.0%} of the samples when a feature takes its neighbours' values"
    elif len(each) < len(some) / 2:
        why = f"in {len(some) - len(each)} of {len(some)} samples too few features differ between neighbours"
    if why is not None:
        return NearData(False, why, rows=rows)
    low, high = (float(end) for end in bootstrap_interval(each, seed=seed))
    line = LINE if step < 1 else WHOLE_LINE
    return NearData(True, "", float(each.mean()), low, high, high >= line, len(each), step, rows)


def _features(task: Task, key: Key) -> Tensor:
    """Numbers (N, M) of features that exist: all, or some drawn at random."""
    order, count = keyed.permutation(key, task.draw_ids, 0, task.space.n_features), task.space.n_features
    if task.space.valid is not None:
        exists = task.space.valid.gather(1, order).long()
        order = order.gather(1, torch.argsort(exists, dim=1, descending=True, stable=True))
        count = int(task.space.counts(len(task)).min())
    return order[:, : min(MOST_FEATURES, count)]


def _overlap(first: Tensor, second: Tensor, where: Tensor) -> Tensor:
    """The sum of the smaller shares (N,) of two rows of effects (N, M), over those that can be compared."""
    first, second = (effects * where for effects in (first, second))
    return torch.minimum(first / first.sum(1, keepdim=True), second / second.sum(1, keepdim=True)).sum(1)


def _near_effects(task: Task, features: Tensor, step: float, key: Key) -> tuple[Tensor, Tensor, float]:
    """Near effects (N, M), where they can be measured, and the share of samples whose response moves.

    They are those of the way that removal goes: mean |response change| times that way over the step's.
    """
    every, own, given = slice(0, len(task)), task.clean_response("logit"), task.train
    assert given is not None
    neighbours = NEIGHBOURS if step < 1 else min(WHOLE_NEIGHBOURS, len(given))
    targets = task.targets[:, None, None].expand(-1, neighbours, 1)
    removed = torch.cat([Backgrounds(task, fill, key)(every) for fill in _fills(task)], 1)
    way = ways(task, removed).gather(1, features)
    found, short = [], []
    for feature, rows in zip(features.T, single_moves(task, features, step, neighbours), strict=True):
        outputs = task.predictor.outputs(rows.flatten(0, 1), repeat_side(task.side, neighbours))
        responses = task.respond(outputs, "logit").unflatten(0, (len(task), -1)).gather(2, targets)[..., 0]
        found.append(round_to_grid(responses.to(own), task.predictor.rounding))
        short.append(ways(task, rows).gather(1, feature[:, None])[:, 0])
    near, step_way = torch.stack(found, 2), torch.stack(short, 1)
    change = (near - own[..., None]).abs()
    size = torch.maximum(own[:, 0].abs(), near.abs().flatten(1).amax(1))
    least = MOVED_GRID_STEPS * grid_step(task.predictor.rounding or task.outputs.dtype) * size
    moved = float((change.flatten(1).amax(1) > least).double().mean())
    differs = (way > 0) & (step_way > 0)
    return change.mean(1) * way / torch.where(differs, step_way, 1.0), differs, moved


def _removal_effects(task: Task, features: Tensor, key: Key) -> Tensor:
    """Mean |response change| (N, M) as a feature joins a random set of removed ones, or leaves it.

    The sets are of all sizes alike.
    """
    fills, changes = _fills(task), []
    count = task.space.n_features
    toggled = torch.cat([torch.zeros_like(features[:, :1]) - 1, features], 1)
    toggled = toggled[..., None] == torch.arange(count, device=task.device)
    order = keyed.permutation(key / "sets", task.draw_ids, torch.arange(DRAWS, device=task.device), count)
    for draw in range(DRAWS):
        removed = order[:, draw] < (draw + 0.5) / DRAWS * count
        rule = Given(removed[:, None] ^ toggled)
        responses = probe(task, rule, response="logit", fill=fills[draw % len(fills)], key=key)
        changes.append((responses[:, 1:] - responses[:, :1]).abs())
    return torch.stack(changes).mean(0)


def _fills(task: Task) -> list[Fill]:
    """The task's fill; a row of the reference rows for each draw where it takes many, or looks at masks."""
    fill = task.fill
    if fill.looks_at_mask or fill.repeats_on(task) > 1:
        return [Marginal(1, draw) for draw in range(DRAWS)]
    return [fill]
