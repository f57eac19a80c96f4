"""Removal by keyed random subsets with exact counts: which features each masked variant loses.

All sizes and both signs of a (sample, draw) share one row of keyed tickets: a variant loses the features of
its part of the ranking (the s strongest, or the n - s weakest) that hold the smallest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from veridical import rng
from veridical.errors import InputError
from veridical.rng import Key

Sign = Literal["plus", "minus"]
SIGNS: tuple[Sign, ...] = ("plus", "minus")
CELLS_AT_ONCE = 2**20
"""Cells (samples x masks x features) worked out together: small enough for a cache, large enough to pay."""
LAST_TICKET = 2**31 - 1
"""What features outside a part hold, so that they come after all others."""
SLACK = 1e-9
"""What a product of decimals may miss an integer by: 0.1 * 30 must allow 3 features, not 2."""


def budget(n: Tensor, beta: float) -> Tensor:
    """B = floor(beta * n + 1e-9): how many features fine-tuning and evaluation may remove."""
    return (n.double() * beta + SLACK).floor().to(torch.int64)


def smallest_beta(n: int) -> float:
    """The smallest beta, in thousandths, that lets one of n features be removed."""
    thousandths = -(-1000 // max(n, 1))
    return thousandths / 1000


def explanation_sizes(n: Tensor, levels: Sequence[float]) -> Tensor:
    """s = n * level rounded half up, at least 1 and at most n - 1: (N, S) for n (N,)."""
    level = torch.tensor(tuple(levels), dtype=torch.float64, device=n.device)
    sizes = (n.double()[:, None] * level + 0.5 + SLACK).floor().to(torch.int64)
    return torch.minimum(sizes, n[:, None] - 1).clamp(min=1)


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


def check_share(what: str, value: float, above: float = 0.0) -> None:
    """Refuse a share outside (above, 1]."""
    if not above < value <= 1:
        raise InputError(f"{what} is a share in ({above:g}, 1], got {value}")


@dataclass(frozen=True, eq=False)
class Removals:
    """The mask rule of one pass: mask (draw, sign, size), sizes fastest, then signs, then draws.

    `ranks` (N, V) is 0 for the strongest feature, and n or more for those that do not exist; `sizes` is
    (N, S); `counts` holds one (N, S) a sign. With `bernoulli` each feature of the part leaves with
    probability count / part on its own, as the published program does, and counts hold on average only.
    """

    key: Key
    ids: Tensor
    ranks: Tensor
    n: Tensor
    sizes: Tensor
    counts: tuple[Tensor, ...]
    signs: tuple[Sign, ...] = SIGNS
    draws: int = 1
    bernoulli: bool = False
    _kept: dict[tuple[int, int, int], Tensor] = field(default_factory=dict, init=False, repr=False)
    _edges: Tensor = field(init=False, repr=False)
    _counts: Tensor = field(init=False, repr=False)
    _order: Tensor = field(init=False, repr=False)
    _whole: bool = field(init=False, repr=False)
    _shared: tuple[tuple[int, int, int], ...] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # 16 bits move a quarter of the memory of 64, and memory is what building a mask costs
        small = torch.int16 if self.ranks.shape[-1] < 2**15 else torch.int32
        object.__setattr__(self, "ranks", self.ranks.to(small))
        edges, counts = torch.cat([self._part(sign) for sign in self.signs], -1), torch.cat(self.counts, -1)
        object.__setattr__(self, "_edges", edges.to(small))
        object.__setattr__(self, "_counts", counts)
        object.__setattr__(self, "_order", self.ranks.argsort(-1))
        all_of_it = bool((counts == edges[1] - edges[0]).all())
        object.__setattr__(self, "_whole", all_of_it)
        # where all samples have as many features, each part is the same stretch of every ranking
        table = torch.stack([*edges, counts], -1)
        alike = len(table) > 0 and not all_of_it and bool((table == table[:1]).all())
        shared = tuple((b, e, c) for b, e, c in table[0].tolist()) if alike else None
        object.__setattr__(self, "_shared", shared)

    def _part(self, sign: Sign) -> Tensor:
        """First rank of the part and the one behind its last: (2, N, S)."""
        begin = torch.zeros_like(self.sizes) if sign == "plus" else self.sizes
        end = self.sizes if sign == "plus" else self.n[:, None].expand_as(self.sizes)
        return torch.stack([begin, end])

    @property
    def count(self) -> int:
        """Masks a sample."""
        return self.draws * len(self.signs) * self.sizes.shape[-1]

    def removed(self, samples: slice, masks: slice) -> Tensor:
        """(samples, masks, V) bool: True where a feature is removed."""
        # small chunks of a model must not draw the same tickets again and again: some draws are worked
        # out together and kept until other ones are asked for
        width = len(self.signs) * self.sizes.shape[-1]
        cells = max(1, (samples.stop - samples.start) * width * self.ranks.shape[-1])
        step = width * max(1, CELLS_AT_ONCE // cells)
        parts = []
        for first in range(masks.start // step * step, masks.stop, step):
            place = (samples.start, samples.stop, first)
            if place not in self._kept:
                self._kept.clear()
                self._kept[place] = self._removed(
                    samples, first // width, min(self.count, first + step) // width
                )
            parts.append(self._kept[place][:, max(0, masks.start - first) : masks.stop - first])
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _removed(self, samples: slice, first: int, last: int) -> Tensor:
        """The masks of whole draws, `first` to `last` - 1."""
        begin, end = self._edges[:, samples].unsqueeze(-1)
        ranks = self.ranks[samples, None]
        part = ((ranks >= begin) & (ranks < end))[:, None]
        if self._whole:
            return part.expand(-1, last - first, -1, -1).flatten(1, 2)
        draws = torch.arange(first, last, device=self.ids.device)
        counts, features = self._counts[samples], self.ranks.shape[-1]
        if self.bernoulli:
            share = rng.uniform(self.key / "bernoulli", self.ids[samples], draws, features)
            rate = counts[..., None] / (end - begin).clamp(min=1)
            return (part & (share[:, :, None] < rate[:, None])).flatten(1, 2)
        tickets = rng.tickets(self.key, self.ids[samples], draws, features)
        limit = self._last_tickets(samples, tickets, part, counts)
        return (tickets[:, :, None] <= limit[..., None]).logical_and_(part).flatten(1, 2)

    def _last_tickets(self, samples: slice, tickets: Tensor, part: Tensor, counts: Tensor) -> Tensor:
        """The largest ticket that is removed in each part: (samples, draws, signs x sizes)."""
        shape = tickets.shape[:2]
        if self._shared is None:
            outside = ~part.expand(-1, shape[1], -1, -1)
            inside = tickets[:, :, None].expand(outside.shape).masked_fill(outside, LAST_TICKET)
            many = counts[:, None, :, None].expand(*shape, -1, -1)
            return rng.smallest(inside.flatten(0, 2), many.flatten(0, 2)).view(*shape, -1)
        # in the order of the ranking a part lies together, and only the part is searched
        order = self._order[samples, None].expand_as(tickets)
        ranked = tickets.gather(-1, order).flatten(0, 1)
        limits = [rng.smallest(ranked[:, begin:end], count) for begin, end, count in self._shared]
        return torch.cat(limits, -1).view(*shape, -1)
