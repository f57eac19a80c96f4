"""Scores made again with one source of chance drawn anew: draws, fill, or tie orders (`Scores.variance`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from veridical.metrics import AnyMetric, Explanation, Key, Metric, Scores, Task
from veridical.models.cost import Cost
from veridical.values.scores import SOURCES, repeats_of


def with_repeats(
    score: Callable[[Key], Scores], metric: AnyMetric, task: Task, subject: object, seed: int, repeats: int
) -> Scores:
    """The scores under one seed, with those of `repeats` - 1 further seeds of each source as details.

    A source that cannot matter here (a fill that draws nothing, maps without ties) is not drawn again.
    """
    first = score(Key(seed))
    ranked = not isinstance(subject, Explanation) or subject.has_ties
    moves = {"draws": True, "fill": _draws_its_fill(metric, task), "tie orders": ranked}
    cost: Cost = first.cost
    details: dict[str, Tensor] = dict(first.details)
    for source in SOURCES:
        columns = [first.values]
        for k in range(1, repeats):
            if moves[source]:
                again = score(_reseeded(seed, source, k))
                cost += again.cost
                columns.append(again.values)
            else:
                columns.append(first.values)
        details[repeats_of(source)] = torch.stack(columns, -1)
    provenance = {**first.provenance, "repeats": repeats}
    return replace(first, details=details, cost=cost, provenance=provenance)


def _draws_its_fill(metric: AnyMetric, task: Task) -> bool:
    """Whether another seed fills with other values; of a metric that wraps another, what that one does."""
    inner = getattr(metric, "metric", metric)
    fill = inner.fill_on(task) if isinstance(inner, Metric) else getattr(inner, "fill", None)
    return bool((fill or task.fill).follows_seed(task))


def _reseeded(seed: int, source: str, repeat: int) -> Key:
    """A key under which one source follows another seed, far from those that people give."""
    other = seed + 1_000_003 * repeat
    if source == "draws":
        return Key(other, apart=tuple((fixed, seed) for fixed in SOURCES if fixed != "draws"))
    return Key(seed, apart=((source, other),))
