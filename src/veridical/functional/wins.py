"""Which of two scores is higher, sample by sample, with ties where a difference is rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.errors import InputError

from ._rows import as_double


def win_units(
    own: Tensor,
    other: Tensor,
    grid: float,
    *,
    no_map: Tensor | None = None,
    other_no_map: Tensor | None = None,
    scale: float | Tensor = 0.0,
) -> Tensor:
    """Give 1 where `own` is the higher score, 1/2 where the two tie, 0 where it is the lower.

    Shapes broadcast. Scores tie where `|own - other| <= grid * max(|own|, |other|, scale)`; `grid` is 1e-5 in
    float32 and 1e-9 in float64, and `scale` is the size below which a score is rounding (1 for a
    probability or a correlation). A score that is NaN ties, since the metric has nothing to say there, but a
    method without a map of the sample, marked by `no_map`, loses, and wins over one marked by
    `other_no_map`; two without a map tie.

    >>> win_units(torch.tensor([2.0, 1.0, 0.0, torch.nan]), torch.tensor([1.0, 1.0, 1.0, 1.0]), 1e-5).tolist()
    [1.0, 0.5, 0.0, 0.5]
    """
    if not 0 <= grid < 1:
        raise InputError(f"grid is a share of the scores between 0 and 1, got {grid}")
    own, other = torch.broadcast_tensors(as_double(own, "own"), as_double(other, "other"))
    size = torch.maximum(own.abs(), other.abs()).clamp(min=torch.as_tensor(scale).to(own))
    # infinities tie with themselves alone: a share of one is no distance
    tied = (own == other) | (size.isfinite() & ((own - other).abs() <= grid * size))
    units = torch.where(own > other, 1.0, 0.0).to(own).masked_fill(tied | own.isnan() | other.isnan(), 0.5)
    lost = torch.zeros_like(units, dtype=torch.bool) if no_map is None else no_map.expand_as(units)
    won = torch.zeros_like(lost) if other_no_map is None else other_no_map.expand_as(units)
    units = units.masked_fill(lost, 0.0).masked_fill(won, 1.0)
    return units.masked_fill(lost & won, 0.5)
