"""Few features: RFid and FFid as exact sums over all subsets that could be drawn, in the place of draws.

k of a part's m features drawn without replacement are each of C(m, k) subsets equally often, so the expected
answer is the mean over those subsets of the table of all 2^n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.fidelity.correctness import rightness
from veridical.fidelity.removal import Removals
from veridical.functional import round_to_grid
from veridical.perturb.probe import probe
from veridical.perturb.rules import AllSubsets
from veridical.perturb.subset_table import FEW, has_few, places_of
from veridical.values.task import Task

FEW_OF_MANY_ROWS = 8
"""The most features whose subsets are all asked where each takes many rows of the fill."""
_WEIGHTS_AT_ONCE = 2**22


def sizes_asked_whole(task: Task, rule: Removals) -> list[int]:
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


def exact_falls(task: Task, rule: Removals, truth: Tensor, key: Key, n: int) -> Tensor:
    """Expected falls (2, N, signs, sizes) of samples of n features, as indicator and as probability."""
    answers = probe(
        task,
        AllSubsets(places_of(task), 2**n - 1),
        key=key,
        with_clean=True,
        all_outputs=True,
        predictions=True,
    )
    values = round_to_grid(torch.stack(rightness(answers, truth, task)))
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
