"""How far a mean or median could have come out otherwise."""

from __future__ import annotations

import math
from numbers import Real
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from veridical.errors import InputError

from ._rows import align, nan_where, valid_first

# Resamples come in blocks with a seed of their own, drawn entry by entry: the draws then depend neither on
# how much memory is used at a time nor on masked entries or other rows.
_BLOCK = 32
_ENTRIES_AT_ONCE = 2**22


class Interval(NamedTuple):
    """The two ends of an interval."""

    low: Tensor
    high: Tensor


def bootstrap_interval(
    values: Tensor,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    statistic: Literal["mean", "median"] = "mean",
    where: Tensor | None = None,
) -> Interval:
    """Give the percentile bootstrap interval of the mean (or median) of each row (Efron 1979).

    Draw n of the n valid entries with replacement, `resamples` times; the interval runs between the
    `(1 - level)/2` and `(1 + level)/2` quantiles (linearly interpolated) of the statistic over the draws.
    All rows share the same draws, made on the CPU by a generator of their own, so that results are the same
    in any batch and on any device. NaN in gives NaN out, and so does a row without a valid entry.

    >>> low, high = bootstrap_interval(torch.arange(100.0))
    >>> bool(low < 49.5 < high), 4 < (high - low).item() < 16
    (True, True)
    """
    if isinstance(level, bool) or not isinstance(level, Real) or not 0.0 < level < 1.0:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, got {resamples}")
    if statistic not in ("mean", "median"):
        raise InputError(f"statistic must be 'mean' or 'median', got {statistic!r}")
    values, valid = align(where, values=values)
    shape, n = values.shape[:-1], values.shape[-1]
    if n == 0 or shape.numel() == 0:
        return Interval(values.new_full(shape, torch.nan), values.new_full(shape, torch.nan))
    undefined = (valid & values.isnan()).any(-1) | ~valid.any(-1)
    rows = values.gather(-1, valid_first(valid)).reshape(-1, n)
    count = valid.sum(-1).reshape(-1, 1, 1)
    drawn = _resample(rows, count, resamples, seed, statistic).sort(-1).values.reshape(*shape, resamples)

    def quantile(q: float) -> Tensor:
        place = q * (resamples - 1)
        below, above = drawn[..., math.floor(place)], drawn[..., math.ceil(place)]
        return nan_where(undefined, below.lerp(above, place - math.floor(place)))

    return Interval(quantile((1 - level) / 2), quantile((1 + level) / 2))


def _resample(rows: Tensor, count: Tensor, resamples: int, seed: int, statistic: str) -> Tensor:
    """The statistic of each row (rows, n) in every resample: (rows, resamples)."""
    n = rows.shape[-1]
    result = rows.new_empty(rows.shape[0], resamples)
    blocks = range(0, resamples, _BLOCK)
    generator = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**62, (len(blocks),), generator=generator).tolist()
    at_once = max(1, _ENTRIES_AT_ONCE // (n * _BLOCK))
    for block_seed, start in zip(seeds, blocks, strict=True):
        uniform = torch.rand(n, _BLOCK, generator=generator.manual_seed(block_seed), dtype=torch.float64)
        uniform = uniform[:, : resamples - start].to(rows.device)
        for top in range(0, rows.shape[0], at_once):
            some, size = rows[top : top + at_once], count[top : top + at_once]
            pick = torch.minimum((uniform * size).to(torch.long), (size - 1).clamp(min=0))
            sample = some.unsqueeze(-1).expand_as(pick).gather(1, pick)
            used = torch.arange(n, device=rows.device).view(1, -1, 1) < size
            if statistic == "mean":
                found = torch.where(used, sample, 0.0).sum(1) / size.squeeze(1)
            else:
                found = _median(sample, used, size)
            result[top : top + at_once, start : start + _BLOCK] = found
    return result


def _median(sample: Tensor, used: Tensor, size: Tensor) -> Tensor:
    ascending = nan_where(~used, sample).sort(dim=1).values
    lower = ((size - 1) // 2).clamp(min=0).expand(-1, 1, sample.shape[-1])
    upper = (size // 2).clamp(max=sample.shape[1] - 1).expand(-1, 1, sample.shape[-1])
    return ((ascending.gather(1, lower) + ascending.gather(1, upper)) / 2).squeeze(1)
