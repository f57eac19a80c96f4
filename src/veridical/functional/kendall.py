"""Kendall's tau-b in n log n, for one row of millions or millions of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ._rows import align, has_spread, nan_where
from .ranks import run_begins

# Inversions inside short blocks are counted by comparing all pairs: their values fit in int8, and some
# dozens of passes over bytes cost less than further rounds of partitioning.
_LONGEST_BLOCK = 64

# Rounds over pieces of this many entries stay in the processor's cache, several times faster than in memory.
_PIECE = 2**17


def kendall_tau_b(x: Tensor, y: Tensor, where: Tensor | None = None) -> Tensor:
    """Compare two orderings pair by pair, with ties in either discounted.

    `tau_b = (C - D) / sqrt((n0 - n_x)(n0 - n_y))`: concordant less discordant pairs, over all `n0 = n(n-1)/2`
    pairs without those tied in x, and without those tied in y. NaN where a row has no spread.

    >>> kendall_tau_b(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 4.0, 2.0, 3.0])).item()
    0.3333333333333333
    """
    x, y, valid = align(where, x=x, y=y)
    n = x.shape[-1]
    if n < 2 or x.numel() == 0:
        return x.new_full(x.shape[:-1], torch.nan)
    counted = valid.sum(-1)
    pairs = counted * (counted - 1) // 2

    # Masked entries become NaN: last in every sort below, tied with nothing, in one order throughout.
    shown_x, shown_y = (t if where is None else nan_where(~valid, t) for t in (x, y))
    tied_x, tied_y, tied_both, discordant = _pair_counts(shown_x, shown_y)
    difference = pairs - tied_x - tied_y + tied_both - 2 * discordant
    # In float64, since the product of two pair counts need not fit into an integer.
    scale = ((pairs - tied_x).to(torch.float64) * (pairs - tied_y).to(torch.float64)).sqrt()
    tau = (difference / scale).clamp(-1.0, 1.0)
    return nan_where(~(has_spread(x, valid) & has_spread(y, valid)), tau)


def _pair_counts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Pairs of each row tied in x, in y, in both, and ordered differently."""
    by_x = torch.argsort(x, dim=-1, stable=True)
    y = y.gather(-1, by_x)
    by_y = torch.argsort(y, dim=-1, stable=True)
    x_begins, y_begins = run_begins(x.gather(-1, by_x)), run_begins(y.gather(-1, by_y))
    # Runs are numbered so that both sorts can break ties by the other variable: a pair tied in either then
    # never looks inverted.
    number = torch.int32 if x.shape[-1] < 2**30 else torch.int64
    x_run = x_begins.cumsum(-1, dtype=number).gather(-1, by_y)
    both_begin = y_begins.clone()
    both_begin[..., 1:] |= x_run[..., 1:] != x_run[..., :-1]
    discordant = _inversions(torch.argsort(x_run, dim=-1, stable=True).to(number))
    tied_x, tied_y, tied_both = (_tied_pairs(begins) for begins in (x_begins, y_begins, both_begin))
    return tied_x, tied_y, tied_both, discordant


def _tied_pairs(begins: Tensor) -> Tensor:
    """Pairs inside runs of equals: each entry ties with those of its run that stand before it."""
    place = torch.arange(begins.shape[-1], device=begins.device)
    return (place - torch.where(begins, place, 0).cummax(-1).values).sum(-1)


def _inversions(permutation: Tensor) -> Tensor:
    """Count the pairs of each row, a permutation of 0..n-1, that stand in the wrong order."""
    batch, n = permutation.shape[:-1], permutation.shape[-1]
    rows = permutation.reshape(-1, n)
    rounds = ((n - 1) // _LONGEST_BLOCK).bit_length()
    # Padded to halve evenly down to short blocks; the padding stands in order at the end and inverts nothing.
    padded = -(-n // (1 << rounds)) << rounds
    padding = torch.arange(n, padded, dtype=rows.dtype, device=rows.device)
    rows = torch.cat([rows, padding.expand(rows.shape[0], -1)], -1)

    across, pieces = _partition_down_to(_PIECE, rows)
    within = []
    for some in torch.split(pieces, max(1, _PIECE // pieces.shape[-1])):
        in_rounds, blocks = _partition_down_to(_LONGEST_BLOCK, some)
        in_blocks = _inversions_by_comparison(blocks)
        within.append(in_rounds + in_blocks.reshape(some.shape[0], -1).sum(-1))
    return (across + torch.cat(within).reshape(rows.shape[0], -1).sum(-1)).reshape(batch)


def _partition_down_to(length: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Count the inversions between blocks of at most `length` entries; give those blocks, values from 0 on.

    Call the larger half of a row's values high: a high one before a low one is an inversion. Move the low
    ones to the front, otherwise keeping the order, and repeat inside both halves. Since rows are permutations
    both halves are equally long and begin at known places, so a round is one running count for all blocks.
    """
    total = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    blocks = rows
    while blocks.shape[-1] > length:
        half = blocks.shape[-1] // 2
        high = (blocks >= half).to(rows.dtype)
        high_so_far = high.cumsum(-1, dtype=rows.dtype)
        # Each low one counts the high ones before it; the high ones count themselves, 1 + 2 + ... + half.
        inverted = high_so_far.sum(-1) - half * (half + 1) // 2
        total += inverted.reshape(rows.shape[0], -1).sum(-1)
        place_if_low = torch.arange(2 * half, dtype=rows.dtype, device=rows.device) - high_so_far
        place_if_high = high_so_far + (half - 1)
        # Arithmetic instead of torch.where, whose branches cost more than all the rest on unpredictable bits.
        target = torch.addcmul(place_if_low, high, place_if_high - place_if_low).long()
        blocks = torch.empty_like(blocks).scatter_(-1, target, blocks)
        blocks[..., half:] -= half
        blocks = blocks.reshape(-1, half)
    return total, blocks


def _inversions_by_comparison(blocks: Tensor) -> Tensor:
    """Count the inverted pairs of each short row by comparing them all."""
    # Rows side by side: a comparison then runs over long contiguous stretches.
    beside = blocks.to(torch.int8).mT.contiguous()
    smaller_after = torch.zeros_like(beside)
    for distance in range(1, beside.shape[0]):
        inverted = beside[:-distance] > beside[distance:]
        smaller_after[:-distance] += inverted.view(torch.int8)
    return smaller_after.sum(0)
