"""Argsorts of long rows on a CPU, several times as fast as numpy's and torch's."""

from __future__ import annotations

import numpy as np


def stable_sort(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Float64 rows sorted, and their stable argsort: NaN last, equals in the order they stand in.

    Plain integers sort an order of magnitude faster than pairs of a value and its place. So the last bits
    of each value are traded for its place, what is left is sorted as integers, and the few neighbours
    whose leading bits agreed are put right by a sort that is quick on rows in near order.
    """
    values = np.ascontiguousarray(x) + 0.0  # there is one zero, not two
    bits = max(1, (values.shape[-1] - 1).bit_length())
    key = values.view(np.int64)
    # a negative number has its bits in reverse order
    key = key ^ ((key >> 63) & np.int64(2**63 - 1))
    key &= np.int64(-(1 << bits))
    key |= np.arange(values.shape[-1])
    key.sort(-1)
    order = key & np.int64((1 << bits) - 1)
    ordered = np.take_along_axis(values, order, -1)
    if not (ordered[..., 1:] >= ordered[..., :-1]).all():
        again = np.argsort(ordered, -1, kind="stable")
        ordered, order = np.take_along_axis(ordered, again, -1), np.take_along_axis(order, again, -1)
    return ordered, order


def sorted_singles(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Float32 rows as integers in the same order, sorted, and their stable argsort; NaN comes last.

    Such a value and its place fit one integer of 64 bits, so that nothing has to be put right afterwards.
    """
    bits = (np.ascontiguousarray(x) + np.float32(0)).view(np.int32)  # there is one zero, not two
    bits = bits ^ ((bits >> 31) & np.int32(2**31 - 1))
    bits[np.isnan(x)] = 2**31 - 1
    key = bits.astype(np.int64) << 32
    key |= np.arange(x.shape[-1])
    key.sort(-1)
    return (key >> 32).astype(np.int32), key & np.int64(2**32 - 1)
