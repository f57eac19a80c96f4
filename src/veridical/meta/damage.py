"""Maps made worse on purpose: of which method they are, and how they are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError
from veridical.explainers import registry as explainer_registry
from veridical.explainers.transforms import degrade
from veridical.values.explanation import Explanation
from veridical.values.task import Task

NONE, PERMUTED, BLENDED, NEGATED = "none", "permuted", "blended", "negated"
KINDS = (PERMUTED, BLENDED, NEGATED)
LEVELS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""The shares of a map's features whose values are permuted."""
NOISE_SHARE = 0.5
"""How much of a blended map is noise of its own size."""
FEW_WITH_MANY_ROWS = 8
"""With more features than this, all subsets are evaluated only where one row fills them in."""


class Step(NamedTuple):
    """One damaged map: what was done to it, to what share, and the maps."""

    kind: str
    share: float
    maps: Explanation


def reference_for(task: Task) -> str:
    """The reference method: exact Shapley values where all subsets can be evaluated, else occlusion."""
    if explainer_registry.make("exact_shapley").inapplicable_reason(task) is None:
        most = int(task.space.counts(len(task)).max())
        if most <= FEW_WITH_MANY_ROWS or task.fill.repeats_on(task) == 1:
            return "exact_shapley"
    reason = explainer_registry.make("occlusion").inapplicable_reason(task)
    if reason is not None:
        raise NotApplicableError(f"damage needs maps to be planted on; name reference=...: {reason}")
    return "occlusion"


def damaged_maps(maps: Explanation, levels: Sequence[float], key: Key) -> list[Step]:
    """The maps as they are, then permuted ever more, blended with noise, and negated."""
    if not levels or sorted(set(levels)) != list(levels) or not all(0 < share <= 1 for share in levels):
        raise InputError(f"levels are rising shares in (0, 1], as (0.5, 1.0); got {levels!r}")
    steps = [Step(NONE, 0.0, maps)]
    steps += [Step(PERMUTED, share, degrade(maps, share, key)) for share in levels]
    values, valid = maps.values.double(), maps.valid
    there = torch.ones_like(values, dtype=torch.bool) if valid is None else valid
    size = (torch.where(there, values, 0.0).square().sum(-1) / there.sum(-1).clamp(min=1)).sqrt()
    noise = size[:, None] * keyed.normal(key / "noise", maps.draw_ids, 0, values.shape[1], torch.float64)
    mixed = torch.where(there, (1 - NOISE_SHARE) * values + NOISE_SHARE * noise, 0.0)
    steps.append(Step(BLENDED, NOISE_SHARE, maps.with_values(mixed.to(maps.values.dtype))))
    return [*steps, Step(NEGATED, 1.0, maps.with_values(-maps.values))]


def distinct_maps(chain: Sequence[Step]) -> Tensor:
    """Whether the maps of two steps differ (K, K, N): to permute zeros is no damage, nor to negate them."""
    there = chain[0].maps.spread & ~chain[0].maps.missing
    rows = [[(a.maps.values != b.maps.values).any(-1) & there for b in chain] for a in chain]
    return torch.stack([torch.stack(row) for row in rows])
