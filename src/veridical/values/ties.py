"""Weak orders: a map with ties stands for every ranking that agrees with it.

A weak order is a ranking `order` (N, V), least relevant first, and `tied` (N, V) along it: whether a place
ties with the one before. Runs of tied places may be arranged in any way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, permutations, product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError

if TYPE_CHECKING:
    from veridical.values.explanation import Explanation

MOST_ORDERS = 8
"""Rankings over which a tied map is averaged: all of them if there are no more, else as many draws."""
FEW_TIES = 1e-4
"""Share of tied pairs below which one ranking stands for all: among the 50,000 numbers
of a large image some are equal by chance, and eight times the rows would buy nothing."""
_OF_THREE = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


def reversed_ties(tied: Tensor, count: Tensor | int) -> Tensor:
    """The ties of the reversed order: place j then stands where count - 1 - j stood."""
    place = torch.arange(tied.shape[-1], device=tied.device)
    behind = (_column(count) - place).clamp(0, tied.shape[-1] - 1).expand(len(tied), -1)
    return tied.gather(-1, behind) & (place > 0) & (place < _column(count))


def run_sizes(tied: Tensor) -> Tensor:
    """How many places each run has (N, V), by its number; 0 for numbers that no run has."""
    # counted by adding up: a running maximum along so long a row keeps a GPU waiting
    run = (~tied).cumsum(-1) - 1
    return torch.zeros_like(run).scatter_add_(-1, run, torch.ones_like(run))


def run_bounds(explanation: Explanation) -> tuple[Tensor, Tensor]:
    """Of each feature's run of ties the first descending rank, and the one behind its last (N, V)."""
    along = (~explanation.tied).cumsum(-1) - 1
    run, ranks = along.gather(-1, explanation.ranks), explanation.descending_ranks
    first = torch.zeros_like(ranks).scatter_reduce(-1, run, ranks, "amin", include_self=False).gather(-1, run)
    return first, first + run_sizes(explanation.tied).gather(-1, run)


def tied_pairs(tied: Tensor, count: Tensor | int) -> Tensor:
    """The share of all pairs of features that tie (N,)."""
    sizes = run_sizes(tied)
    pairs = (sizes * (sizes - 1)).sum(-1).double() / 2
    if isinstance(count, int):
        return pairs / max(1, count * (count - 1) // 2)
    return pairs / (count * (count - 1) / 2.0).clamp(min=1)


def _column(count: Tensor | int) -> Tensor | int:
    return count if isinstance(count, int) else count[:, None]


def _within(tied: Tensor) -> Tensor:
    """How many places of its run come before each place (N, V)."""
    place = torch.arange(tied.shape[-1], device=tied.device).expand_as(tied)
    return place - torch.where(tied, 0, place).cummax(-1).values


@dataclass(frozen=True, eq=False)
class TieOrders:
    """The rankings that tied maps are scored by; `counts` (N,) says how many a sample has, 1 to 8.

    Exactly all where there are at most 8, else 8 keyed draws; one where hardly any pair is tied. Runs of
    features none of which `matters` (N, V) are left as they are: removing them changes nothing in any order.
    """

    explanation: Explanation
    counts: Tensor
    each: tuple[int, ...]
    """The counts once more, on the host: read once, as that waits for a GPU."""
    _tied: Tensor
    _every: Tensor
    mirrored: bool = False
    """Whether the later half of the draws turns the ties of the earlier half round: a map and its inverse are
    then scored by the same rankings, read forwards and backwards."""

    @property
    def most(self) -> int:
        """How many rankings the sample with most of them has."""
        return max(self.each, default=1)

    @property
    def drawn(self) -> Tensor:
        """Which samples have further rankings than these (N,), so that a mean over them varies."""
        return ~self._every & (self.counts > 1)

    def beyond(self, which: int) -> list[int]:
        """The samples that have more rankings than `which`."""
        return [row for row, count in enumerate(self.each) if count > which]

    @classmethod
    def none(cls, explanation: Explanation) -> TieOrders:
        """The order that each map has, and no other."""
        one = torch.ones_like(explanation.ids)
        return cls(explanation, one, (1,) * len(explanation), explanation.tied, one.bool())

    @classmethod
    def of(cls, explanation: Explanation, matters: Tensor | None = None) -> TieOrders:
        """The rankings that a map stands for."""
        if not explanation.has_ties:
            return cls.none(explanation)
        return cls(explanation, *_rankings(explanation, matters))

    def where(self, seen: Tensor | bool) -> TieOrders:
        """The same where ties are `seen`; elsewhere maps keep the order they have."""
        if seen is True or self.most == 1:
            return self
        keep = torch.as_tensor(seen, device=self.counts.device).expand_as(self.counts)
        counts = torch.where(keep, self.counts, 1)
        tied, every = self._tied & keep[:, None], self._every | ~keep
        return TieOrders(self.explanation, counts, tuple(counts.tolist()), tied, every, self.mirrored)

    def at_most(self, most: int) -> TieOrders:
        """So many of the rankings for each sample; where it has more they are drawn, none is the first."""
        keep = self.counts <= most
        counts = self.counts.clamp(max=most)
        each = tuple(min(count, most) for count in self.each)
        return replace(self, counts=counts, each=each, _every=self._every & keep)

    def take(self, rows: Sequence[int]) -> TieOrders:
        """Those of some of the samples."""
        index = torch.tensor(rows, device=self.counts.device)
        each = tuple(self.each[row] for row in rows)
        some = self.explanation.take(index)
        return TieOrders(some, self.counts[index], each, self._tied[index], self._every[index], self.mirrored)

    def strict(self, which: int, key: Key) -> Explanation:
        """The map along its `which`-th ranking, without ties; draws follow the seed and the sample alone."""
        explanation, tied = self.explanation, self._tied
        turned = self.mirrored and which >= MOST_ORDERS // 2
        draws = keyed.uniform(
            Key(key.of("tie orders").seed) / "tie orders",
            explanation.draw_ids,
            which - MOST_ORDERS // 2 if turned else which,
            tied.shape[-1],
            torch.float64,
        )
        draws = 1 - draws if turned else draws
        place = torch.where(
            self._every[:, None], self._enumerated(which), draws.gather(-1, explanation.order)
        )
        arranged = ((~tied).cumsum(-1) + place).argsort(dim=-1, stable=True)
        return explanation.strictly_along(explanation.order.gather(-1, arranged))

    def _enumerated(self, which: int) -> Tensor:
        """Where each place goes in its run, as a number in [0, 1), in the `which`-th of at most 8 orders."""
        tied, within = self._tied, _within(self._tied)
        run = (~tied).cumsum(-1) - 1
        size = torch.zeros_like(run).scatter_add_(-1, run, torch.ones_like(run)).gather(-1, run)
        # at most 8 orders: up to three runs of two, or one of three
        before = (tied & (within == 1)).cumsum(-1) - (within == 1).long() * tied.long()
        swapped = (which >> before.clamp(max=8)) & 1
        of_three = torch.tensor(_OF_THREE[which % 6], device=tied.device)[within.clamp(max=2)]
        return torch.where(size == 3, of_three / 3, (within ^ swapped).clamp(max=1) / 2)


def agreeing_orders(explanation: Explanation, sample: int, most: int, key: Key) -> tuple[Tensor, bool]:
    """Rankings (K, n) of one sample's n features that agree with its map, and whether these are all.

    All where there are at most `most`, else so many draws.
    """
    count = int(explanation.space.counts(len(explanation))[sample])
    order, tied = explanation.order[sample, :count], explanation.tied[sample, :count]
    run = (~tied).cumsum(-1)
    runs = [order[run == number].tolist() for number in range(int(run[0]), int(run[-1]) + 1)]
    if math.prod(math.factorial(len(each)) for each in runs) <= most:
        found = [[*chain(*parts)] for parts in product(*map(permutations, runs))]
        return torch.tensor(found, device=order.device), True
    draws = torch.arange(most, device=order.device)
    ids = explanation.draw_ids[sample : sample + 1]
    arranged = keyed.uniform(key / "agreeing", ids, draws, count, torch.float64)[0] + run
    return order[arranged.argsort(-1)], False


def _rankings(
    explanation: Explanation, matters: Tensor | None
) -> tuple[Tensor, tuple[int, ...], Tensor, Tensor]:
    """How many rankings each sample has, on device and host; its ties; and whether these are all."""
    tied = explanation.tied
    if matters is not None:
        run = (~tied).cumsum(-1) - 1
        moves = torch.zeros_like(run).scatter_add_(-1, run, matters.gather(-1, explanation.order).long())
        tied = tied & (moves.gather(-1, run) > 0)
    # a run of n places can be arranged in n! ways
    log = torch.lgamma(run_sizes(tied).double() + 1).sum(-1)
    counts = log.clamp(max=4.0).exp().round().long()
    hardly = tied_pairs(tied, tied.shape[-1]) < FEW_TIES
    kept = torch.where(hardly, 1, counts.clamp(max=MOST_ORDERS))
    return kept, tuple(kept.tolist()), tied, counts <= MOST_ORDERS


def check_order(order: Any, values: Tensor, who: str) -> None:
    """Raise where an order does not rank all features, or does not sort these values."""
    features = values.shape[-1]
    if not isinstance(order, Tensor) or order.dtype != torch.int64 or order.shape != values.shape:
        given = f"{order.dtype} {tuple(order.shape)}" if isinstance(order, Tensor) else type(order).__name__
        raise InputError(f"`order` ranks all features: int64 {tuple(values.shape)} expected, got {given}")
    inside = bool(((order >= 0) & (order < features)).all())
    seen = torch.zeros_like(order, dtype=torch.bool)
    if not inside or not bool(seen.scatter_(-1, order, True).all()):
        raise InputError(f"`order` of '{who}' does not name each of {features} features once")
    ascending = values.gather(-1, order)
    wrong = (ascending[:, 1:] < ascending[:, :-1]).any(-1)
    if bool(wrong.any()):
        bad = wrong.nonzero().reshape(-1)[:5].tolist()
        raise InputError(
            f"`order` does not sort the values of '{who}' in samples {bad}: it is that of another map. Use "
            "explanation.with_values(values), which ranks anew, or give no order"
        )
