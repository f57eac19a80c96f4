"""Metrics that walk one path of nested sets: their inverses and random rankings share model evaluations.

Pixel flipping and its kin ask the model about the prefixes of one ranking and weigh the answers. Such a
metric is described by data (`RankPath`), and then any number of rankings of a sample can be asked in one
go: the untouched input is the task's own, and the input without features is asked once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.functional import positions
from veridical.metrics.base import AnyMetric
from veridical.metrics.faithfulness._common import RankPath
from veridical.models.context import Context
from veridical.perturb.probe import probe
from veridical.values.explanation import Explanation
from veridical.values.task import Task

_ENTRIES_AT_ONCE = 2**24


def path_of(metric: AnyMetric, task: Task) -> RankPath | None:
    """The path a metric walks on this task by its method `path(task)`, or None if it has none."""
    offered = getattr(metric, "path", None)
    return offered(task) if callable(offered) else None


@dataclass(frozen=True, eq=False)
class _ManyRankings:
    """Masks of K rankings: perhaps the one that removes everything, then the steps of each ranking.

    `ranks` (N, K, V) is 0 for the feature removed first; mask j takes the `level[j]`-th count of ranking
    `which[j]`.
    """

    ranks: Tensor
    counts: Tensor
    which: Tensor
    level: Tensor

    @property
    def count(self) -> int:
        return len(self.which)

    def removed(self, samples: slice, masks: slice) -> Tensor:
        level = self.level[masks]
        counts = self.counts[None, level] if self.counts.dim() == 1 else self.counts[samples][:, level]
        return self.ranks[samples][:, self.which[masks]] < counts[..., None]


def responses_along(task: Task, path: RankPath, orders: Tensor, context: Context) -> Tensor:
    """Responses (N, K, M + 1), the untouched input first, of K rankings (N, K, V) least relevant first.

    Takes K (M - 1) + 1 rows per sample where the path ends with no feature left, K M otherwise.
    """
    samples, rankings, _ = orders.shape
    steps, device = path.counts.shape[-1], orders.device
    shared = path.ends_empty(task)
    each = steps - shared
    which = torch.arange(rankings, device=device).repeat_interleave(each)
    level = torch.arange(each, device=device).repeat(rankings)
    if shared:
        which = torch.cat([which.new_zeros(1), which])
        level = torch.cat([level.new_full((1,), steps - 1), level])
    rule = _ManyRankings(_removal_ranks(task, path, orders), path.counts.to(device), which, level)
    response, fill = path.response, path.fill
    found = probe(
        task, rule, response=response, fill=fill, key=context.key, with_clean=True, memo=context.memo
    )
    clean, empty, body = found.split([1, int(shared), rankings * each], 1)
    ends = [part[:, None].expand(-1, rankings, -1) for part in (clean, empty)]
    return torch.cat([ends[0], body.reshape(samples, rankings, each), ends[1]], -1)


def scores_along(
    task: Task, path: RankPath, orders: Callable[[int, int], Tensor], rankings: int, context: Context
) -> Tensor:
    """Scores (N, K) of many rankings, given by `orders(first, count)` so that few are held at a time."""
    at_once = max(1, _ENTRIES_AT_ONCE // max(1, len(task) * task.space.n_features))
    parts = []
    for start in range(0, rankings, at_once):
        few = orders(start, min(at_once, rankings - start))
        parts.append(path.score(responses_along(task, path, few, context)))
    return torch.cat(parts, 1)


def _removal_ranks(task: Task, path: RankPath, orders: Tensor) -> Tensor:
    """(N, K, V): 0 for the feature removed first; 16 bits where they suffice."""
    ranks = positions(orders)
    if path.most_relevant_first:
        counts = task.space.counts(len(task)).to(ranks.device)[:, None, None]
        ranks = torch.where(ranks < counts, counts - 1 - ranks, ranks)
    return ranks.to(torch.int16 if orders.shape[-1] < 2**15 else torch.int32)


def reversed_orders(orders: Tensor, valid: Tensor | None) -> Tensor:
    """The inverse of each ranking (N, ..., V), valid features reversed and the others left in place."""
    if valid is None:
        return orders.flip(-1)
    count = valid.sum(-1).reshape(-1, *[1] * (orders.dim() - 1))
    place = torch.arange(orders.shape[-1], device=orders.device).expand_as(orders)
    return orders.gather(-1, torch.where(place < count, count - 1 - place, place))


def digest(explanation: Explanation) -> Tensor:
    """64 bits per sample (N,) that stand for its ranking: draws keyed by them differ between explanations.

    It reads the ranking and not the values, whose last bits follow the batch they were computed in.
    """
    ranks = explanation.ranks
    features = torch.arange(ranks.shape[-1], device=ranks.device)
    cells = (ranks + (features << 32)).reshape(-1)
    mixed = keyed.bits(Key(0) / "ranking", cells, 0, 1).reshape(ranks.shape)
    if explanation.valid is not None:
        mixed = mixed.masked_fill(~explanation.valid, 0)
    return mixed.sum(-1)


def random_orders(
    key: Key, ids: Tensor, draws: Tensor | int, features: int, valid: Tensor | None = None
) -> Tensor:
    """Uniform rankings (N, V) of one draw, or (N, K, V) of several, invalid features last."""
    return keyed.permutation(key / "rankings", ids, draws, features, valid)
