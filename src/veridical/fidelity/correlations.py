"""How well scores follow a known order: macro, micro and micro-rank, with undefined kept apart from zero."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.fidelity.masked_pass import area_over_sizes
from veridical.functional import has_spread, spearman

PAIRS: dict[str, int] = {"MoRF vs GT": -1, "LeRF vs GT": 1, "MoRF vs LeRF": -1}
"""What is correlated, and the sign it should have."""
GRID = 1e-9
"""Means nearer than this tie: they are sums of the same numbers in another order."""


@dataclass(frozen=True, eq=False)
class Agreement:
    """Correlations of one metric: (mean, deviation over repeats) per pair; NaN where there is none.

    `micro` is the mean over the sizes where it is defined, `undefined` how many (repeat, size) had none,
    `by_size` (repeats, sizes) the correlations themselves at `sizes`.
    """

    macro: Mapping[str, tuple[float, float]]
    micro: Mapping[str, tuple[float, float]]
    undefined: Mapping[str, int]
    by_size: Mapping[str, Tensor]
    sizes: tuple[float, ...]


def order_correlation(scores: Tensor, other: Tensor) -> Tensor:
    """Spearman's correlation along the last dimension; NaN where either is constant."""
    a, b = (torch.round(values / GRID) * GRID for values in (scores, other.expand_as(scores)))
    defined = has_spread(a) & has_spread(b)
    return spearman(a, b).masked_fill(~defined, torch.nan)


def agreement(plus: Tensor, minus: Tensor, ratios: Sequence[float], levels: Sequence[float]) -> Agreement:
    """Correlations from mean falls (repeats, ratios, sizes) of both signs."""
    known = torch.tensor(tuple(ratios), dtype=torch.float64, device=plus.device)
    areas = [area_over_sizes(values, levels) for values in (plus, minus)]
    at_sizes = [values.transpose(1, 2) for values in (plus, minus)]  # repeats, sizes, ratios
    macro = _pairs(areas[0], areas[1], known)
    micro = _pairs(at_sizes[0], at_sizes[1], known)
    return Agreement(
        {pair: _mean_and_spread(values) for pair, values in macro.items()},
        {pair: _mean_and_spread(values.nanmean(-1)) for pair, values in micro.items()},
        {pair: int(values.isnan().sum()) for pair, values in micro.items()},
        micro,
        tuple(levels),
    )


def _pairs(plus: Tensor, minus: Tensor, known: Tensor) -> dict[str, Tensor]:
    found = (
        order_correlation(plus, known),
        order_correlation(minus, known),
        order_correlation(plus, minus),
    )
    return dict(zip(PAIRS, found, strict=True))


def _mean_and_spread(values: Tensor) -> tuple[float, float]:
    """Mean and standard deviation over repeats that have a value."""
    kept = values[~values.isnan()]
    if not len(kept):
        return math.nan, math.nan
    return float(kept.mean()), float(kept.std(correction=0))


def micro_ranks(agreements: Mapping[str, Agreement]) -> dict[str, dict[str, tuple[float, float]]]:
    """The mean rank of each metric over its sizes: ties get the best rank, undefined ranks last.

    Where no metric is defined nobody has a rank. At each size a metric stands among those measured there
    (ROAR has fewer sizes than the others).
    """
    out: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in agreements}
    sizes = sorted({size for found in agreements.values() for size in found.sizes})
    for pair, sign in PAIRS.items():
        ranks: dict[str, list[Tensor]] = {name: [] for name in agreements}
        for size in sizes:
            there = {n: found for n, found in agreements.items() if size in found.sizes}
            repeats = min(len(found.by_size[pair]) for found in there.values())
            scores = torch.stack(
                [found.by_size[pair][:repeats, found.sizes.index(size)] for found in there.values()]
            )
            nothing = scores.isnan().all(0)
            scores = torch.round((scores * sign).nan_to_num(-2.0) / GRID) * GRID
            places = (scores[None] > scores[:, None]).sum(1).double() + 1
            for name, place in zip(there, places.masked_fill(nothing, torch.nan), strict=True):
                ranks[name].append(place)
        for name, found_ranks in ranks.items():
            out[name][pair] = _mean_and_spread(torch.cat(found_ranks))
    return out
