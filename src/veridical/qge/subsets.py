"""All rankings from all subsets: 2^D model evaluations give the score of each of D! rankings.

A ranking visits the prefixes of a permutation, and prefixes are subsets. A subset is a number whose bit i
says that feature i is gone; a score is sum_m w_m y(first m features gone).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.functional import round_to_grid
from veridical.metrics.base import AnyMetric, Metric
from veridical.models.context import Context
from veridical.perturb.probe import probe
from veridical.perturb.rules import AllSubsets
from veridical.perturb.subset_table import bits_of, places_of
from veridical.qge.gap import MapGap
from veridical.qge.paths import path_of
from veridical.values.scores import Direction
from veridical.values.task import Task

LARGEST_COUNT = 14
"""Beyond this many features a percentile through subsets takes longer than sampling is inexact."""
LARGEST_ENUMERATION = 10
"""Beyond this many features the scores of all rankings do not fit in 2 GB."""
_DECIMALS = 12
_AT_ONCE = 2**20  # look-ups held at a time


def rounded(scores: Tensor) -> Tensor:
    """Scores without the last digits, which depend on the order of a sum."""
    return scores.round(decimals=_DECIMALS)


@dataclass(frozen=True, eq=False)
class RankingScores:
    """The score of every ranking and of its inverse, (D!,) each, rankings in lexicographic order."""

    scores: Tensor
    inverses: Tensor

    @property
    def gaps(self) -> Tensor:
        """QGE of every ranking; rounded, since rankings with the same gap must tie."""
        return rounded(self.scores - self.inverses)


def all_rankings(steps: Tensor) -> RankingScores:
    """Score all D! removal orders of one sample from what each set of removed features adds (2^D,).

    The inverse of a ranking passes the complements of its prefixes, so both scores grow along one walk. The
    sums are rounded to 12 decimals: orders that add up the same responses must tie.
    """
    halves, middle, before, after = _halves(torch.stack([steps, steps.flip(-1)], -1))
    # every first half goes with every order of the features it left, a whole row at a time
    row = torch.searchsorted(halves, middle)
    scores, inverses = ((before[:, i, None] + after[..., i].contiguous()[row]).reshape(-1) for i in range(2))
    return RankingScores(rounded(scores), rounded(inverses))


def _halves(table: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sets of half the features; where walks to them end and their sums; sums (set, walks) from them."""
    features = len(table).bit_length() - 1
    sets = torch.arange(len(table), device=table.device)
    halves = sets[bits_of(sets, features).sum(-1) == features // 2]
    middle, before = _walk(table, features, sets[:1], features // 2)
    _, after = _walk(table, features, halves, features - features // 2, False)
    return halves, middle, before, after.unflatten(0, (len(halves), -1))


def _walk(
    table: Tensor, features: int, start: Tensor, steps: int, with_start: bool = True
) -> tuple[Tensor, Tensor]:
    """Grow each set in every order by `steps` features: where each walk ends, and the table summed along it.

    Walks from one start are neighbours, in lexicographic order.
    """
    sets = torch.arange(2**features, device=table.device)
    # the features outside a set first, in their order
    free = torch.argsort(bits_of(sets, features).to(torch.int8), dim=-1, stable=True)
    grown = sets[:, None] | (1 << free)
    at = start
    total = table[at] if with_start else torch.zeros_like(table[at])
    left = features - int(bits_of(start[:1], features).sum())
    for width in range(left, left - steps, -1):
        at = grown[at, :width].reshape(-1)
        total = total.repeat_interleave(width, 0) + table[at]
    return at, total


def steps_of(metric: Metric, task: Task, features: int, context: Context) -> Tensor | None:
    """What each set of removed features adds to a score (N, 2^D), higher is better; None if it is no path.

    A ranking's score is the sum over the sets it passes. The inverse passes their complements, so the gap of
    such a metric is a sum over the same sets.
    """
    size = bits_of(torch.arange(2**features, device=task.device), features).sum(-1)
    if isinstance(metric, MapGap) and not metric.independent_draws and isinstance(metric.metric, Metric):
        own = steps_of(metric.metric, task, features, context.with_key(metric.own_key(context.key)))
        # a set and its complement are a number and the same read from the other end
        return None if own is None else own - own.flip(-1)
    path = path_of(metric, task)
    if path is None:
        return None
    rule, response = AllSubsets(places_of(task), 2**features - 1), path.response
    responses = probe(
        task, rule, response=response, fill=path.fill, key=context.key, with_clean=True, memo=context.memo
    )
    responses = round_to_grid(responses, like=task.predictor.rounding or task.outputs)
    weights = torch.stack([path.dense_weights(i, features) for i in range(len(task))]).to(task.device)
    return sign_of(metric) * responses * weights[:, size]


def sign_of(metric: AnyMetric) -> float:
    """What makes a metric's scores higher-is-better."""
    return 1.0 if metric.better is Direction.HIGHER else -1.0


def sampled_scores(steps: Tensor, orders: Tensor) -> Tensor:
    """The scores (K,) of removal orders (K, D) of one sample, looked up without asking the model."""
    gone = (1 << orders).cumsum(-1)
    gone = torch.cat([torch.zeros_like(gone[:, :1]), gone], -1)
    return steps[gone].sum(-1)


def best_and_worst(steps: Tensor) -> tuple[Tensor, Tensor]:
    """The highest and the lowest score (N,) that any of the D! rankings of each sample reaches.

    From the end: the best way on from a set is its best next feature, so 2^D D look-ups find it.
    """
    features = steps.shape[-1].bit_length() - 1
    sets = torch.arange(steps.shape[-1], device=steps.device)
    size = bits_of(sets, features).sum(-1)
    best, worst = steps.clone(), steps.clone()
    for many in range(features - 1, -1, -1):
        some = sets[size == many]
        free = torch.argsort(bits_of(some, features).to(torch.int8), dim=-1, stable=True)[
            :, : features - many
        ]
        further = some[:, None] | (1 << free)
        best[:, some] += best[:, further].amax(-1)
        worst[:, some] += worst[:, further].amin(-1)
    return best[:, 0], worst[:, 0]


def shares_below(steps: Tensor, scores: Tensor, tolerance: float) -> Tensor:
    """The share of all D! rankings that score lower than each score (K,), those that tie counted half.

    Each ranking passes one set of D/2 features: what can come before and after it is summed up apart, and
    sorting one side counts the pairs. So 12! rankings take 924 x 720 look-ups for each score.
    """
    features = len(steps).bit_length() - 1
    halves, middle, before, after = _halves(steps)
    before = before[middle.argsort(stable=True)].reshape(len(halves), -1)
    after = after.sort(-1).values

    def found(score: Tensor) -> Tensor:
        wanted = (score[None, :, None] - before[:, None]).flatten(1)
        below = torch.searchsorted(after, wanted - tolerance)
        up_to = torch.searchsorted(after, wanted + tolerance, right=True)
        return (below + up_to).unflatten(1, (len(score), -1)).sum((0, 2))

    # rankings of a model that adds up its features often score alike
    kinds, which = scores.unique(return_inverse=True)
    counts = torch.cat([found(some) for some in kinds.split(max(1, _AT_ONCE // before.numel()))])
    return (counts.double() / 2 / math.factorial(features))[which]
