"""How far a transformed quality keeps the order of the original (the paper's R2)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from veridical import rng
from veridical.functional import average_ranks, kendall_tau_b, pearson
from veridical.rng import Key

STRATA = (0.5, 1.0, 1.5, 2.0, 2.5)
"""Lower edges of the strata, in standard deviations of q above its mean; the last one is open."""


def above_random(quality: Tensor, pool: Tensor, key: Key, draws: int) -> list[Tensor]:
    """QRAND_1..QRAND_draws (n,) of explanations with this quality, r_k drawn from the pool for each anew."""
    ids = torch.arange(len(quality), device=quality.device)
    total = torch.zeros_like(quality)
    out = []
    for k in range(draws):
        picked = rng.integers(key / "rankings", ids, k, 1, len(pool))[:, 0]
        total = total + pool[picked]
        out.append(quality - total / (k + 1))
    return out


def order_kept(quality: Tensor, transformed: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Kendall's tau-b and Spearman's rho of the quality (n,) with each transformed one, (T,) each."""
    # sorted once for all: what follows sorts again, and a sorted row quickly; one at a time, since a row of
    # all rankings takes 29 MB
    quality, order = quality.sort()
    ranks = average_ranks(quality)
    tau, rho = [], []
    for other in transformed:
        ordered = other[order]
        tau.append(kendall_tau_b(quality, ordered))
        rho.append(pearson(ranks, average_ranks(ordered)))
    return torch.stack(tau), torch.stack(rho)


def order_kept_by_stratum(quality: Tensor, transformed: list[Tensor]) -> Tensor:
    """Kendall's tau-b (S, T) among the explanations of each stratum of quality; NaN for fewer than two."""
    z = (quality - quality.mean()) / quality.std(correction=0)
    edges = (*STRATA, torch.inf)
    rows = []
    for low, high in pairwise(edges):
        inside = (z >= low) & (z < high)
        few = quality[inside]
        rows.append(torch.stack([kendall_tau_b(few, t[inside]) for t in transformed]))
    return torch.stack(rows)


def histogram(values: Tensor, bins: int = 60) -> tuple[Tensor, Tensor]:
    """Edges (bins + 1,) and density (bins,) over the range of the values."""
    low, high = float(values.min()), float(values.max())
    high = high if high > low else low + 1.0
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    counts = torch.histc(values, bins, low, high).cpu()
    return edges, counts / counts.sum() / (edges[1] - edges[0])
