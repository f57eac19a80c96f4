"""How far the right answer falls: one pass over all sizes, both signs and all draws of an explanation.

Of few features RFid and FFid are exact sums instead of means over draws: k of a part's m features drawn
without replacement are each of C(m, k) subsets equally often, so the expected answer is the mean over those
subsets of the table of all 2^n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.fidelity.correctness import correctness_of
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
from veridical.models.context import Memo
from veridical.perturb.probe import probe
from veridical.perturb.rules import AllSubsets
from veridical.perturb.subset_table import FEW, has_few, places_of
from veridical.values.explanation import Explanation
from veridical.values.task import Task

ANSWERS_AT_ONCE = 2**23
"""Answers (samples x masks x outputs) held at a time: 64 MiB in float64."""
FEW_OF_MANY_ROWS = 8
"""The most features whose subsets are all asked where each takes many rows of the fill."""
_WEIGHTS_AT_ONCE = 2**22


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
    memo: Memo | None = None,
) -> Mapping[Sign, Falls]:
    """Measure how far the right answer falls at every size and sign, over all draws, in one pass.

    The model is evaluated on samples x sizes x signs x draws rows (times the repeats of the fill). Of few
    features all subsets are evaluated instead, and the falls are exact expectations.

    Parameters
    ----------
    task : Task
        The model that sees masked inputs, and the samples.
    explanation : Explanation
        Whose ranking decides what is removed.
    truth : Tensor
        The right answer of each sample.
    levels : sequence of float
        Explanation sizes, as shares of the features.
    alpha : float
        Share of the explanation (or of the rest) that is removed.
    beta : float, optional
        Caps the counts at floor(beta * n); None leaves them uncapped.
    draws : int
        Random parts drawn per sample, size and sign.
    signs : sequence of {"plus", "minus"}
        Whether the explanation is removed, or all but the explanation.
    bernoulli : bool
        Whether each feature leaves on its own with the probability that gives the count on average.
    key : Key
        Key of the draws.
    memo : Memo, optional
        What the call has computed so far: of few features each subset is evaluated once.

    Returns
    -------
    dict of str to Falls
        Sizes, counts and falls of each sign.
    """
    levels, memo = evaluated_sizes(task, levels), memo or Memo()
    rule = removals(task, explanation, levels, alpha, beta, draws, signs, bernoulli, key)
    shape = (draws, len(rule.signs), len(levels))
    whole = enumerable_sizes(task, rule)
    if task.space.valid is None:
        falls = exact_falls(task, rule, truth, key, *whole, memo=memo) if whole else None
    else:
        falls = _mixed_falls(task, rule, truth, shape, key, whole, memo) if whole else None
    if falls is None:
        falls = _drawn_falls(task, rule, truth, shape, key, memo)
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


def evaluated_sizes(task: Task, levels: Sequence[float]) -> tuple[float, ...]:
    """The sizes that are asked: those given, or where all samples have the same few features, whole ones."""
    n = task.space.n_features
    if task.space.valid is not None or not 2 <= n <= FEW:
        return tuple(levels)
    sizes = explanation_sizes(torch.tensor([n]), levels).unique()
    return tuple((sizes.double() / n).tolist())


def _mixed_falls(
    task: Task,
    rule: Removals,
    truth: Tensor,
    shape: tuple[int, int, int],
    key: Key,
    whole: Sequence[int],
    memo: Memo,
) -> Tensor:
    """The same where samples differ in length: exact for the short ones, drawn for the others."""
    falls = torch.empty(2, len(task), *shape[1:], dtype=torch.float64, device=task.device)
    drawn = torch.ones_like(rule.n, dtype=torch.bool)
    for n in whole:
        rows = (rule.n == n).nonzero()[:, 0]
        falls[:, rows] = exact_falls(task[rows], rule.take(rows), truth[rows], key, n, memo=memo)
        drawn[rows] = False
    rows = drawn.nonzero()[:, 0]
    if len(rows):
        falls[:, rows] = _drawn_falls(task[rows], rule.take(rows), truth[rows], shape, key, memo)
    return falls


def _drawn_falls(
    task: Task, rule: Removals, truth: Tensor, shape: tuple[int, int, int], key: Key, memo: Memo
) -> Tensor:
    """Mean falls (2, N, signs, sizes) over draws, as indicator and as probability."""
    size = max(1, ANSWERS_AT_ONCE // max(1, rule.count * 2 * task.n_outputs))
    found: list[Tensor] = []
    for at in range(0, len(task), size):
        piece = slice(at, at + size)
        whole = size >= len(task)
        part, some = (task, rule) if whole else (task[piece], rule.take(piece))
        answers = probe(part, some, key=key, with_clean=True, all_outputs=True, predictions=True, memo=memo)
        values = round_to_grid(
            torch.stack(correctness_of(answers, truth[piece], part)), task.predictor.rounding
        )
        masked = values[..., 1:].unflatten(-1, shape).mean(2)
        found.append(values[..., :1, None] - masked)
    return torch.cat(found, 1) if len(found) > 1 else found[0]


def evaluations(task: Task, levels: Sequence[float], draws: int, signs: Sequence[Sign] = SIGNS) -> int:
    """How many rows `measure` asks the model at most: samples x sizes x signs x draws x repeats of the fill.

    Of few features no mask is asked twice, so there are never more than all their subsets.
    """
    masks = len(evaluated_sizes(task, levels)) * len(tuple(signs)) * draws
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
    return Removals(
        key / "removal", task.draw_ids, ranks, n, sizes, counts, tuple(signs), draws, bernoulli, whole
    )


def enumerable_sizes(task: Task, rule: Removals) -> list[int]:
    """The numbers of features whose samples have all their subsets asked, in the place of draws.

    These are samples of up to 12 features (8 where the fill has many rows) of which draws would ask as many
    masks or more.
    """
    if has_few(task, task.fill) is None or rule.bernoulli or rule.draws == 1:
        return []
    most = FEW if task.fill.repeats_on(task) == 1 else FEW_OF_MANY_ROWS
    # where all samples have the same features, to count them need not wait for the device
    found = [task.space.n_features] if task.space.valid is None else rule.n.unique().tolist()
    return [n for n in found if n <= most and rule.count >= 2**n]


def exact_falls(
    task: Task, rule: Removals, truth: Tensor, key: Key, n: int, *, memo: Memo | None = None
) -> Tensor:
    """Expected falls (2, N, signs, sizes) of samples of n features, as indicator and as probability."""
    answers = probe(
        task,
        AllSubsets(places_of(task), 2**n - 1),
        key=key,
        with_clean=True,
        all_outputs=True,
        predictions=True,
        memo=memo,
    )
    values = round_to_grid(torch.stack(correctness_of(answers, truth, task)))
    many = rule.edges.shape[-1]
    at_once = max(1, _WEIGHTS_AT_ONCE // (many * 2**n))
    parts = [
        _expected(values[:, rows], rule, places_of(task)[rows], rows)
        for rows in (slice(at, at + at_once) for at in range(0, len(task), at_once))
    ]
    return (values[..., :1] - torch.cat(parts, 1)).unflatten(-1, (len(rule.signs), -1))


def _expected(values: Tensor, rule: Removals, places: Tensor, rows: slice) -> Tensor:
    """The mean of values (2, N, 2^n) over the subsets that each part (sign, size) may lose: (2, N, parts)."""
    first, behind = rule.edges[:, rows].long()
    ranks = rule.ranks[rows, None].long()
    inside = (ranks >= first[..., None]) & (ranks < behind[..., None]) & (places[:, None] >= 0)
    part = torch.where(inside, 1 << places[:, None].clamp(min=0), 0).sum(-1)
    code = torch.arange(values.shape[-1], device=values.device)
    size = torch.stack([(code >> bit) & 1 for bit in range(FEW)]).sum(0)
    drawn = (code & ~part[..., None]) == 0
    drawn &= size == rule.part_counts[rows, :, None]
    share = drawn.double() / drawn.sum(-1, keepdim=True).clamp(min=1)
    return (share @ values.movedim(0, -1)).movedim(-1, 0)
