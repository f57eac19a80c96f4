"""Ties and inversions of paired rows on a CPU, where sorting plain integers is what goes fastest."""

from __future__ import annotations

import numpy as np

from ._sorting import stable_sort

# Inversions inside short blocks are counted by comparing all pairs: some dozens of passes over neighbours
# cost less than further sorts of tiny rows.
_LONGEST_BLOCK = 64

# Sorts of pieces of this many entries stay in the processor's cache.
_PIECE = 2**17


def pair_counts(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each row (R, n): pairs tied in x, in y and in both, and pairs that x and y order differently.

    NaN sorts last and ties with nothing.
    """
    narrow = np.int32 if x.shape[-1] < 2**30 else np.int64
    code, y_begins = _codes(y, narrow)
    x_begins = np.ones(x.shape, bool)
    if (x[:, 1:] > x[:, :-1]).all():
        # strictly ascending as it stands: nothing to sort, nothing tied
        pass
    elif (x[:, 1:] >= x[:, :-1]).all():
        x_begins[:, 1:] = x[:, 1:] != x[:, :-1]
    else:
        ordered, order = stable_sort(x)
        x_begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        code = np.take_along_axis(code, order, -1)
        del order, ordered  # a row of millions: what is not needed is not held
    tied_x, tied_y = _tied_pairs(x_begins), _tied_pairs(y_begins)
    del y_begins
    tied_both = np.zeros_like(tied_x)
    if tied_x.any():
        # ordered by y among equals of x, so that a pair tied in x never looks inverted
        key = x_begins.cumsum(-1, dtype=np.int64)
        key <<= 32
        key |= code
        key.sort(-1)
        begins = x_begins
        begins[:, 1:] = key[:, 1:] != key[:, :-1]
        tied_both = _tied_pairs(begins)
        key &= 2**32 - 1
        code = key.astype(narrow)
        del key
    return tied_x, tied_y, tied_both, inversions(code)


def _codes(rows: np.ndarray, kind: type[np.signedinteger]) -> tuple[np.ndarray, np.ndarray]:
    """0, 1, 2, ... for the values of each row, equals alike; and where runs of equals begin once sorted."""
    ordered, order = stable_sort(rows)
    begins = np.ones(rows.shape, bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    del ordered
    number = begins.cumsum(-1, dtype=kind)
    number -= 1
    code = np.empty_like(number)
    np.put_along_axis(code, order, number, -1)
    return code, begins


def _tied_pairs(begins: np.ndarray) -> np.ndarray:
    """Pairs inside runs of equals, of rows of runs."""
    rows, n = begins.shape
    # every row begins a run, so no run reaches over into the next row
    at = np.flatnonzero(begins)
    length = np.diff(at, append=rows * n)
    inside = np.zeros(rows, np.int64)
    several = length > 1
    np.add.at(inside, at[several] // n, length[several] * (length[several] - 1) // 2)
    return inside


def inversions(rows: np.ndarray) -> np.ndarray:
    """Count the pairs of each row (R, n) of integers from 0 to n - 1 that stand in the wrong order.

    Neighbouring blocks are merged by sorting them together, and where the entries of the second end up tells
    how many entries of the first they had to pass: an entry at place p has p - (entries of its own block
    before it) of them before it.
    """
    count, n = rows.shape
    rounds = ((n - 1) // _LONGEST_BLOCK).bit_length()
    # Padded to halve evenly down to short blocks; the padding stands in order at the end and inverts nothing.
    block = -(-n // (1 << rounds))
    padded = block << rounds
    work = np.empty((count, padded), rows.dtype)
    work[:, :n] = rows
    work[:, n:] = np.arange(n, padded)
    wide = block
    while 2 * wide <= min(padded, _PIECE):
        wide *= 2
    pieces = work.reshape(-1, wide)
    total = np.empty(len(pieces), np.int64)
    few = max(1, _PIECE // wide)
    for at in range(0, len(pieces), few):
        some = pieces[at : at + few]
        inside = _by_comparison(some.reshape(-1, block)).reshape(len(some), -1).sum(-1)
        # one bit for the side of a pair of blocks that an entry comes from
        some <<= 1
        total[at : at + few] = inside + _merged(some, block)
    return total.reshape(count, -1).sum(-1) + _merged(work, wide)


def _by_comparison(blocks: np.ndarray) -> np.ndarray:
    """Count the inverted pairs of each short row (B, n <= 64) by comparing them all."""
    # Rows side by side: a comparison then runs over long contiguous stretches.
    beside = np.ascontiguousarray(blocks.T)
    total = np.zeros(len(blocks), np.int64)
    for distance in range(1, len(beside)):
        inverted = beside[:-distance] > beside[distance:]
        total += np.add.reduce(inverted.view(np.uint8), 0, dtype=np.uint8)
    return total


def _merged(rows: np.ndarray, sorted_to: int) -> np.ndarray:
    """Count the inversions between blocks of `sorted_to` entries of each row, however ordered inside.

    Entries are even numbers; the rows are sorted in place.
    """
    count, n = rows.shape
    total = np.zeros(count, np.int64)
    half = sorted_to
    while 2 * half <= n:
        pairs = rows.reshape(count, -1, 2 * half)
        # of equals the first block's go first, as if in order
        pairs[..., half:] += 1
        pairs.sort(-1)
        second = rows & 1
        rows -= second
        places = second.reshape(pairs.shape).sum(1, dtype=rows.dtype) @ np.arange(2 * half)
        # each of the second block was passed by `half` less those of the first before it
        total += n // (2 * half) * (half * half + half * (half - 1) // 2) - places
        half *= 2
    return total
