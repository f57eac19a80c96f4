"""Removal by keyed random subsets with exact counts: which features each masked variant loses.

All sizes and both signs of a (sample, draw) share one row of keyed tickets: a variant loses the features of
its part of the ranking (the s strongest, or the n - s weakest) that hold the smallest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional._rows import numbers_on
from veridical.functional.devices import at_a_time, on_host
from veridical.random import keyed, subset_draws
from veridical.random.keyed import Key

Sign = Literal["plus", "minus"]
SIGNS: tuple[Sign, ...] = ("plus", "minus")
CELLS_AT_ONCE = 2**18, 2**26
"""Cells worked out together: tickets that stay in a CPU's cache, or masks that a GPU is busy with."""
CELLS_KEPT = 2**24
"""Tickets (samples x draws x features) kept for chunks to come: 64 MiB, eight times that on a GPU."""
LAST_TICKET = 2**31 - 1
"""What features outside a part hold, so that they come after all others."""
FEW = 12
"""Up to so many features each whole size is asked once: 19 levels would fall on them unevenly."""
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
    """(N, S): False where a sample of few features meets a size again, further from that size's own share."""
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
class Parts:
    """Which stretch of the ranking each (sign, size) removes from, and how many of it.

    `edges` (2, N, M) is the first rank of a part and the one behind its last, `counts` (N, M) how many of it
    leave. Where `whole`, all of every part do; `shared` holds (first, behind, count) of each part where these
    are the same in every sample.
    """

    edges: Tensor
    counts: Tensor
    whole: bool
    shared: tuple[tuple[int, int, int], ...] | None

    @classmethod
    def of(cls, n: Tensor, sizes: Tensor, counts: tuple[Tensor, ...], signs: tuple[Sign, ...]) -> Parts:
        """The parts of samples of n (N,) features, for sizes (N, S) and counts (N, S) per sign."""
        first, behind = torch.zeros_like(sizes), n[:, None].expand_as(sizes)
        ends = [(first, sizes) if sign == "plus" else (sizes, behind) for sign in signs]
        edges = torch.cat([torch.stack(pair) for pair in ends], -1)
        many = torch.cat(counts, -1)
        whole = bool((many == edges[1] - edges[0]).all())
        # where all samples have as many features, each part is the same stretch of every ranking
        table = torch.stack([*edges, many], -1)
        alike = len(table) > 0 and not whole and bool((table == table[:1]).all())
        shared = tuple((b, e, c) for b, e, c in table[0].tolist()) if alike else None
        return cls(edges, many, whole, shared)

    def take(self, samples: slice | Tensor) -> Parts:
        """Those of some of the samples."""
        return replace(self, edges=self.edges[:, samples], counts=self.counts[samples])


@dataclass(frozen=True, eq=False)
class Removals:
    """The mask rule of one pass: mask (draw, sign, size), sizes fastest, then signs, then draws.

    `ranks` (N, V) is 0 for the strongest feature, and n or more for those that do not exist; `sizes` is
    (N, S); `counts` holds one (N, S) per sign. With `bernoulli` each feature of the part leaves with
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
    parts: InitVar[Parts | None] = None
    """What follows from sizes, counts and signs, for those who know it already."""
    _kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)
    _edges: Tensor = field(init=False, repr=False)
    _counts: Tensor = field(init=False, repr=False)
    _parts: Parts = field(init=False, repr=False)

    def __post_init__(self, parts: Parts | None) -> None:
        # 16 bits move a quarter of the memory of 64, and memory is what building a mask costs
        small = torch.int16 if self.ranks.shape[-1] < 2**15 else torch.int32
        object.__setattr__(self, "ranks", self.ranks.to(small))
        parts = parts or Parts.of(self.n, self.sizes, self.counts, self.signs)
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "_edges", parts.edges.to(small))
        object.__setattr__(self, "_counts", parts.counts)

    def take(self, samples: slice | Tensor) -> Removals:
        """The rule of some of the samples."""
        return replace(
            self,
            ids=self.ids[samples],
            ranks=self.ranks[samples],
            n=self.n[samples],
            sizes=self.sizes[samples],
            counts=tuple(counts[samples] for counts in self.counts),
            parts=self._parts.take(samples),
        )

    @property
    def edges(self) -> Tensor:
        """The first rank of each part (sign, size) and the one behind its last (2, N, parts)."""
        return self._edges

    @property
    def part_counts(self) -> Tensor:
        """How many features each part loses (N, parts)."""
        return self._counts

    @property
    def count(self) -> int:
        """Masks per sample."""
        return self.draws * len(self.signs) * self.sizes.shape[-1]

    def removed(self, samples: slice, masks: slice) -> Tensor:
        """(samples, masks, V) bool: True where a feature is removed."""
        width = self._counts.shape[-1]
        first, last = masks.start // width, -(-masks.stop // width)
        begin, end = self._edges[:, samples].unsqueeze(-1)
        ranks = self.ranks[samples, None]
        part = ((ranks >= begin) & (ranks < end))[:, None]
        if self._parts.whole:
            found = part.expand(-1, last - first, -1, -1)
        elif self.bernoulli:
            draws = torch.arange(first, last, device=self.ids.device)
            share = keyed.uniform(self.key / "bernoulli", self.ids[samples], draws, ranks.shape[-1])
            rate = self._counts[samples, :, None] / (end - begin).clamp(min=1)
            found = part & (share[:, :, None] < rate[:, None])
        else:
            found = self._drawn(samples, first, last, part)
        return found.flatten(1, 2)[:, masks.start - first * width : masks.stop - first * width]

    def _drawn(self, samples: slice, first: int, last: int, part: Tensor) -> Tensor:
        """Exact counts of each part (samples, 1, signs x sizes, V), for the draws `first` to `last` - 1."""
        shape = (len(part), last - first, *part.shape[2:])
        found = torch.empty(shape, dtype=torch.bool, device=part.device)
        tall, wide = self._tile
        for top in range(samples.start // tall * tall, samples.stop, tall):
            for left in range(first // wide * wide, last, wide):
                tickets, limits = self._tickets(top, left)
                down = slice(max(samples.start, top), min(samples.stop, top + tall))
                across = slice(max(first, left), min(last, left + wide))
                own = (
                    slice(down.start - top, down.stop - top),
                    slice(across.start - left, across.stop - left),
                )
                place = (
                    slice(down.start - samples.start, down.stop - samples.start),
                    slice(across.start - first, across.stop - first),
                )
                torch.le(tickets[own][:, :, None], limits[own][..., None], out=found[place])
        return found.logical_and_(part)

    @property
    def _tile(self) -> tuple[int, int]:
        """Samples and draws whose tickets are worked out together."""
        features = max(1, self.ranks.shape[-1])
        cells = at_a_time(self.ids, *CELLS_AT_ONCE)
        if not on_host(self.ids):
            cells //= max(1, self._counts.shape[-1])  # there every part is counted through at once
        wide = min(self.draws, max(1, cells // features))
        return max(1, cells // (features * wide)), wide

    def _tickets(self, top: int, left: int) -> tuple[Tensor, Tensor]:
        """Tickets (samples, draws, V) of one tile and the last that is removed (samples, draws, parts).

        Kept, since small chunks of a model must not draw the same tickets again and again.
        """
        if (top, left) not in self._kept:
            tall, wide = self._tile
            features, room = self.ranks.shape[-1], at_a_time(self.ids, CELLS_KEPT, 8 * CELLS_KEPT)
            if (len(self._kept) + 1) * tall * wide * features > room:
                self._kept.clear()
            samples = slice(top, min(len(self.ids), top + tall))
            draws = torch.arange(left, min(self.draws, left + wide), device=self.ids.device)
            tickets = subset_draws.tickets(self.key, self.ids[samples], draws, features)
            self._kept[top, left] = tickets, self._last_tickets(samples, tickets)
        return self._kept[top, left]

    def _last_tickets(self, samples: slice, tickets: Tensor) -> Tensor:
        """The largest ticket that is removed in each part: (samples, draws, signs x sizes)."""
        if not on_host(tickets):
            edges, ranks = self._edges[:, samples], self.ranks[samples]
            return counted_last_tickets(tickets, ranks, edges, self._counts[samples])
        shape = tickets.shape[:2]
        if self._parts.shared is None:
            begin, end = self._edges[:, samples].unsqueeze(-1)
            ranks = self.ranks[samples, None]
            outside = ((ranks < begin) | (ranks >= end))[:, None].expand(-1, shape[1], -1, -1)
            inside = tickets[:, :, None].expand(outside.shape).masked_fill(outside, LAST_TICKET)
            many = self._counts[samples, None, :, None].expand(*shape, -1, -1)
            return subset_draws.smallest(inside.flatten(0, 2), many.flatten(0, 2)).view(*shape, -1)
        # in the order of the ranking a part lies together, and only the part is searched
        order = self.ranks[samples].argsort(-1)[:, None].expand_as(tickets)
        ranked = tickets.gather(-1, order).flatten(0, 1)
        limits = [
            subset_draws.smallest(ranked[:, begin:end], count) for begin, end, count in self._parts.shared
        ]
        return torch.cat(limits, -1).view(*shape, -1)


def counted_last_tickets(tickets: Tensor, ranks: Tensor, edges: Tensor, counts: Tensor) -> Tensor:
    """The same by one sort and a running count of each part, in few steps for a device that has many hands.

    In the order of the tickets (N, K, V) a part holds its count of features up to some place: that ticket.
    """
    ordered, order = tickets.sort(-1)
    ranked = ranks[:, None].expand_as(order).gather(-1, order)[:, :, None]
    begin, end = edges[:, :, None, :, None]
    running = ((ranked >= begin) & (ranked < end)).cumsum(-1, dtype=ranks.dtype)
    place = (running < counts[:, None, :, None]).sum(-1)
    last = ordered.gather(-1, place.clamp(max=ordered.shape[-1] - 1))
    return last.masked_fill(counts[:, None] < 1, -LAST_TICKET - 1)
