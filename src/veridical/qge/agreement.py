"""How far a transformed quality keeps the order of the original (the paper's R2)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.functional import average_ranks, kendall_tau_b, pearson
from veridical.functional.devices import at_a_time

STRATA = (0.5, 1.0, 1.5, 2.0, 2.5)
"""Lower edges of the strata, in standard deviations of q above its mean; the last one is open."""
_DRAWN_AT_ONCE = 2**16
"""Draws of so many rows stay in a processor's cache; each row's are its own, however they are cut."""


def above_random(quality: Tensor, pool: Tensor, key: Key, draws: int) -> Iterator[Tensor]:
    """QRAND_1..QRAND_draws (n,) of explanations with this quality, r_k drawn from the pool for each anew.

    One after the other, since all rankings of ten features take 29 MB each time.
    """
    total = torch.zeros_like(quality)
    at_once = at_a_time(quality, _DRAWN_AT_ONCE, len(quality))
    ids = torch.arange(len(quality), device=quality.device).split(at_once)
    for k in range(draws):
        for some, part in zip(ids, total.split(at_once), strict=True):
            part += pool[keyed.integers(key / "rankings", some, k, 1, len(pool))[:, 0]]
        yield quality - total / (k + 1)


class KeptOrder:
    """Compares the order of one quality (n,) with that of others, after sorting it once for all."""

    def __init__(self, quality: Tensor) -> None:
        z = (quality - quality.mean()) / quality.std(correction=0)
        # what is in order already, the comparisons need not sort again
        ordered, self.order = quality.sort()
        self.ranks = average_ranks(ordered)
        edges = torch.tensor([*STRATA, torch.inf], dtype=z.dtype, device=z.device)
        self.edges: list[int] = torch.searchsorted(z[self.order], edges).tolist()

    def compare(self, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Kendall's tau-b, Spearman's rho, and tau-b inside each stratum of quality (S,).

        NaN for a stratum of fewer than two.
        """
        # ranks tie where values do, and have few digits: they are the faster to sort for tau
        ranks = average_ranks(other[self.order])
        inside = [kendall_tau_b(self.ranks[low:high], ranks[low:high]) for low, high in pairwise(self.edges)]
        return kendall_tau_b(self.ranks, ranks), pearson(self.ranks, ranks), torch.stack(inside)


def histogram(values: Tensor, bins: int = 60) -> tuple[Tensor, Tensor]:
    """Edges (bins + 1,) and density (bins,) over the range of the values."""
    low, high = float(values.min()), float(values.max())
    high = high if high > low else low + 1.0
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    counts = torch.histc(values, bins, low, high).cpu()
    return edges, counts / counts.sum() / (edges[1] - edges[0])
