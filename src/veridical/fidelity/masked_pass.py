"""One pass over the masked variants of one explanation: all sizes, both signs, all draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.fidelity.correctness import rightness
from veridical.fidelity.exact_sums import exact_falls, sizes_asked_whole
from veridical.fidelity.removal import (
    SIGNS,
    Removals,
    Sign,
    budget,
    explanation_sizes,
    removal_counts,
    sizes_once,
)
from veridical.functional import area_under_curve, round_to_grid
from veridical.perturb.probe import probe
from veridical.perturb.subset_table import FEW
from veridical.values.explanation import Explanation
from veridical.values.task import Task

ANSWERS_AT_ONCE = 2**23
"""Answers (samples x masks x outputs) held at a time: 64 MiB in float64."""


@dataclass(frozen=True, eq=False)
class Falls:
    """How far the right answer falls (N, S) over explanation sizes, as indicator and as probability.

    NaN where nothing is removed (a count of 0), since a fall of 0 there would say nothing of the map, and
    where a sample of few features has no size of its own at a level (`once`).
    """

    levels: tuple[float, ...]
    sizes: Tensor
    counts: Tensor
    once: Tensor
    indicator: Tensor
    probability: Tensor

    def variant(self, name: str) -> Tensor:
        """The falls of one variant by name."""
        return self.indicator if name == "indicator" else self.probability


def mean_over_sizes(falls: Tensor) -> Tensor:
    """The mean over the sizes that have a value (N,); NaN where none has."""
    return falls.nanmean(-1)


def area_over_sizes(falls: Tensor, levels: Sequence[float]) -> Tensor:
    """The trapezoid area over the sizes where a row has a value; of a single one that value."""
    level = torch.tensor(tuple(levels), dtype=torch.float64, device=falls.device).expand_as(falls)
    there = ~falls.isnan()
    area = area_under_curve(falls.nan_to_num(0.0), level, there)
    return torch.where(there.sum(-1) > 1, area, falls.nanmean(-1))


def measure(
    task: Task,
    explanation: Explanation,
    truth: Tensor,
    *,
    levels: Sequence[float],
    alpha: float = 0.5,
    beta: float | None = None,
    draws: int = 50,
    signs: Sequence[Sign] = SIGNS,
    bernoulli: bool = False,
    key: Key = Key(0),  # noqa: B008 (frozen)
) -> Mapping[Sign, Falls]:
    """Ask the task's model about every (size, sign, draw) of every sample in one pass.

    The model is asked samples x sizes x signs x draws rows (times the repeats of the fill). `beta` caps the
    counts at floor(beta * n); None leaves them uncapped. `truth` is the right answer of each sample. Of few
    features all subsets are asked instead, and the falls are exact expectations (see `exact_sums`).
    """
    levels = levels_of(task, levels)
    rule = removals(task, explanation, levels, alpha, beta, draws, signs, bernoulli, key)
    shape = (draws, len(rule.signs), len(levels))
    whole = sizes_asked_whole(task, rule)
    if task.space.valid is None:
        falls = exact_falls(task, rule, truth, key, *whole) if whole else None
    else:
        falls = _mixed_falls(task, rule, truth, shape, key, whole) if whole else None
    if falls is None:
        falls = _drawn_falls(task, rule, truth, shape, key)
    out: dict[Sign, Falls] = {}
    once = torch.ones_like(rule.sizes, dtype=torch.bool)
    if task.space.valid is not None:
        once = sizes_once(rule.n, rule.sizes, levels)
    for place, sign in enumerate(rule.signs):
        counts = rule.counts[place]
        nothing = (counts < 1) | ~once
        each = [kept[:, place].masked_fill(nothing, torch.nan) for kept in falls]
        out[sign] = Falls(levels, rule.sizes, counts, once, *each)
    return out


def levels_of(task: Task, levels: Sequence[float]) -> tuple[float, ...]:
    """The sizes that are asked: those given, or where all samples have the same few features, whole ones."""
    n = task.space.n_features
    if task.space.valid is not None or not 2 <= n <= FEW:
        return tuple(levels)
    sizes = explanation_sizes(torch.tensor([n]), levels).unique()
    return tuple((sizes.double() / n).tolist())


def _mixed_falls(
    task: Task, rule: Removals, truth: Tensor, shape: tuple[int, int, int], key: Key, whole: Sequence[int]
) -> Tensor:
    """The same where samples differ in length: exact for the short ones, drawn for the others."""
    falls = torch.empty(2, len(task), *shape[1:], dtype=torch.float64, device=task.device)
    drawn = torch.ones_like(rule.n, dtype=torch.bool)
    for n in whole:
        rows = (rule.n == n).nonzero()[:, 0]
        falls[:, rows] = exact_falls(task[rows], rule.take(rows), truth[rows], key, n)
        drawn[rows] = False
    rows = drawn.nonzero()[:, 0]
    if len(rows):
        falls[:, rows] = _drawn_falls(task[rows], rule.take(rows), truth[rows], shape, key)
    return falls


def _drawn_falls(task: Task, rule: Removals, truth: Tensor, shape: tuple[int, int, int], key: Key) -> Tensor:
    """Mean falls (2, N, signs, sizes) over draws, as indicator and as probability."""
    size = max(1, ANSWERS_AT_ONCE // max(1, rule.count * 2 * task.n_outputs))
    found: list[Tensor] = []
    for at in range(0, len(task), size):
        piece = slice(at, at + size)
        whole = size >= len(task)
        part, some = (task, rule) if whole else (task[piece], rule.take(piece))
        answers = probe(part, some, key=key, with_clean=True, all_outputs=True, predictions=True)
        values = round_to_grid(torch.stack(rightness(answers, truth[piece], part)), task.predictor.rounding)
        masked = values[..., 1:].unflatten(-1, shape).mean(2)
        found.append(values[..., :1, None] - masked)
    return torch.cat(found, 1) if len(found) > 1 else found[0]


def evaluations(task: Task, levels: Sequence[float], draws: int, signs: Sequence[Sign] = SIGNS) -> int:
    """How many rows `measure` asks the model at most: samples x sizes x signs x draws x repeats of the fill.

    Of few features no mask is asked twice, so there are never more than all their subsets.
    """
    masks = len(levels_of(task, levels)) * len(tuple(signs)) * draws
    if task.space.valid is None:
        n = task.space.n_features
        rows = len(task) * (min(2**n - 1, masks) if n <= FEW else masks)
    else:
        counts = task.space.counts(len(task))
        each = torch.where(counts <= FEW, (2 ** counts.clamp(max=FEW) - 1).clamp(max=masks), masks)
        rows = int(each.sum())
    return rows * task.fill.repeats_on(task)


def removals(
    task: Task,
    explanation: Explanation,
    levels: Sequence[float],
    alpha: float,
    beta: float | None,
    draws: int,
    signs: Sequence[Sign],
    bernoulli: bool,
    key: Key,
) -> Removals:
    """The mask rule of one pass."""
    n = task.space.counts(len(task)).to(task.device)
    sizes = explanation_sizes(n, levels)
    cap = None if beta is None else budget(n, beta)
    # a single feature cannot be split into an explanation and the rest
    counts = tuple(
        removal_counts(sizes, n, sign, alpha, cap).masked_fill(n[:, None] < 2, 0) for sign in signs
    )
    ranks = explanation.descending_ranks.to(task.device)
    whole = alpha == 1 and beta is None
    return Removals(key / "removal", task.ids, ranks, n, sizes, counts, tuple(signs), draws, bernoulli, whole)
