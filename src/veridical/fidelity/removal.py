"""Removal by keyed random subsets with exact counts: which features each masked variant loses.

All sizes and both signs of a (sample, draw) share one row of random keys: a variant loses the features of its
part of the ranking (the s strongest, or the n - s weakest) that hold the smallest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.functional._rows import numbers_on
from veridical.perturb.subset_table import FEW

Sign = Literal["plus", "minus"]
SIGNS: tuple[Sign, ...] = ("plus", "minus")
BEFORE_ALL = -(2**31)
"""Below every random key, so that nothing is removed up to it."""
SLACK = 1e-9
"""What a product of decimals may miss an integer by: 0.1 * 30 must allow 3 features, not 2."""


def budget(n: Tensor, beta: float) -> Tensor:
    """B = max(1, floor(beta * n + 1e-9)): how many of n features a positive share beta may remove."""
    whole = (n.double() * beta + SLACK).floor().to(torch.int64)
    return torch.minimum(whole.clamp(min=1), n) if beta > 0 else whole


def explanation_sizes(n: Tensor, levels: Sequence[float]) -> Tensor:
    """s = n * level rounded half up, at least 1 and at most n - 1: (N, S) for n (N,)."""
    level = numbers_on(n.device, tuple(levels))
    sizes = (n.double()[:, None] * level + 0.5 + SLACK).floor().to(torch.int64)
    return torch.minimum(sizes, n[:, None] - 1).clamp(min=1)


def sizes_once(n: Tensor, sizes: Tensor, levels: Sequence[float]) -> Tensor:
    """(N, S): False where a sample of few features meets a size again, further from that size's own share.

    Of up to 12 features each whole size counts once: 19 levels would fall on them unevenly.
    """
    share = numbers_on(n.device, tuple(levels))
    off = (sizes / n.clamp(min=1)[:, None] - share).abs()
    place = torch.arange(len(share), device=n.device)
    nearer = (off[:, None] < off[..., None]) | ((off[:, None] == off[..., None]) & (place < place[:, None]))
    again = ((sizes[:, None] == sizes[..., None]) & nearer).any(-1)
    return ~again | (n > FEW)[:, None]


def removal_counts(sizes: Tensor, n: Tensor, sign: Sign, alpha: float, cap: Tensor | None = None) -> Tensor:
    """k+ = min(floor(alpha * s), B) of the s strongest, k- = min(ceil(alpha * (n - s)), B) of the others.

    Without a cap B these are the counts of RFid (eq. 3-4), with it those of FFid (eq. 6).
    """
    if sign == "plus":
        counts = (sizes.double() * alpha + SLACK).floor()
    else:
        counts = ((n[:, None] - sizes).double() * alpha - SLACK).ceil()
    counts = counts.to(torch.int64)
    return counts if cap is None else torch.minimum(counts, cap[:, None])


def check_levels(levels: Sequence[float]) -> None:
    """Refuse sizes at which nothing, or everything, would be the explanation."""
    if not levels:
        raise InputError("give at least one explanation size, such as sizes=(0.1, 0.2)")
    for level in levels:
        if not 0 < level < 1:
            raise InputError(
                f"an explanation size is a share of the features strictly between 0 and 1, got {level}: at 0 "
                "nothing is explained and at 1 nothing is left over"
            )
    if any(b <= a for a, b in pairwise(levels)):
        raise InputError(f"explanation sizes must ascend, got {tuple(levels)}")


@dataclass(frozen=True, eq=False)
class Removals:
    """The mask rule of one pass: mask (draw, part), parts fastest, where a part is a (sign, size).

    `ranks` (N, V) is 0 for the strongest feature, and n or more for those that do not exist. A part is the
    features of ranks `edges[0]` to `edges[1] - 1` (N, parts), of which `counts` (N, parts) are removed. With
    `bernoulli` each feature of the part leaves with probability count / part on its own, as the published
    program does, and counts hold on average only. With `whole` all of every part leaves.
    """

    key: Key
    ids: Tensor
    ranks: Tensor
    edges: Tensor
    counts: Tensor
    draws: int = 1
    bernoulli: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        # 16 bits move a quarter of the memory of 64, and memory is what building a mask costs
        small = torch.int16 if self.ranks.shape[-1] < 2**15 else torch.int32
        object.__setattr__(self, "ranks", self.ranks.to(small))
        object.__setattr__(self, "edges", self.edges.to(small))

    def take(self, samples: slice | Tensor) -> Removals:
        """The rule of some of the samples."""
        ids, ranks, counts = (each[samples] for each in (self.ids, self.ranks, self.counts))
        return replace(self, ids=ids, ranks=ranks, edges=self.edges[:, samples], counts=counts)

    @property
    def count(self) -> int:
        """Masks per sample."""
        return self.draws * self.counts.shape[-1]

    def removed(self, samples: slice, masks: slice) -> Tensor:
        """(samples, masks, V) bool: True where a feature is removed."""
        width = self.counts.shape[-1]
        first, last = masks.start // width, -(-masks.stop // width)
        begin, end = self.edges[:, samples].unsqueeze(-1)
        ranks, counts = self.ranks[samples, None], self.counts[samples]
        part = ((ranks >= begin) & (ranks < end))[:, None]
        draws = torch.arange(first, last, device=self.ids.device)
        if self.whole:
            found = part.expand(-1, last - first, -1, -1)
        elif self.bernoulli:
            share = keyed.uniform(self.key / "bernoulli", self.ids[samples], draws, ranks.shape[-1])
            rate = counts[..., None] / (end - begin).clamp(min=1)
            found = part & (share[:, :, None] < rate[:, None])
        else:
            random_keys = keyed.random_keys(self.key, self.ids[samples], draws, ranks.shape[-1])
            limits = last_keys(random_keys, self.ranks[samples], self.edges[:, samples], counts)
            found = (random_keys[:, :, None] <= limits[..., None]).logical_and_(part)
        return found.flatten(1, 2)[:, masks.start - first * width : masks.stop - first * width]


def last_keys(random_keys: Tensor, ranks: Tensor, edges: Tensor, counts: Tensor) -> Tensor:
    """The largest random key that is removed in each part: (samples, draws, parts).

    In the order of the keys (N, K, V) a part holds its count of features up to some place: that key.
    """
    ordered, order = random_keys.sort(-1)
    ranked = ranks[:, None].expand_as(order).gather(-1, order)[:, :, None]
    begin, end = edges[:, :, None, :, None]
    running = ((ranked >= begin) & (ranked < end)).cumsum(-1, dtype=ranks.dtype)
    place = (running < counts[:, None, :, None]).sum(-1)
    last = ordered.gather(-1, place.clamp(max=ordered.shape[-1] - 1))
    return last.masked_fill(counts[:, None] < 1, BEFORE_ALL)
