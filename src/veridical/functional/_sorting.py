"""Argsorts of long rows on a CPU, several times as fast as torch's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def stable_argsort(x: Tensor) -> Tensor:
    """`torch.argsort(x, dim=-1, stable=True)` of float64 rows: NaN last, equals in the order they stand in.

    Plain integers sort an order of magnitude faster than pairs of a value and its place. So the last bits
    of each value are traded for its place, what is left is sorted as integers, and the few neighbours
    whose leading bits agreed are put right by a sort that is quick on rows in near order.
    """
    if x.device.type != "cpu" or x.shape[-1] < 2:
        return torch.argsort(x, dim=-1, stable=True)
    values = np.ascontiguousarray(x.numpy()) + 0.0  # there is one zero, not two
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
        order = np.take_along_axis(order, np.argsort(ordered, -1, kind="stable"), -1)
    return torch.from_numpy(order)


def stable_argsort_of_runs(run: Tensor, ordered: Tensor) -> Tensor:
    """The same of small integers (..., n) whose sorted row is known: `ordered[argsort] == run[argsort]`."""
    if run.device.type != "cpu":
        return torch.argsort(run, dim=-1, stable=True)
    n = run.shape[-1]
    key = run.numpy().astype(np.int64) * n + np.arange(n)
    key.sort(-1)
    return torch.from_numpy(key - ordered.numpy().astype(np.int64) * n)
