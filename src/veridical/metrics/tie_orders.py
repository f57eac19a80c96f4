"""Maps with ties: scored by all rankings that agree with them, not by the raster's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from veridical.metrics import Explanation, Key, Outcome, Task
from veridical.metrics.base import TIED_PAIRS
from veridical.values.ties import TieOrders

TIE_VARIANCE = "variance of tie orders"
"""The detail that says how far a score moves between rankings that agree with its map."""
TIES_DECIDE = "ties decide: the score moves between rankings that agree with the map"
_DECIDES = 0.05
"""Standard deviation between rankings, as a share of the score, from which ties decide it."""


def ties_decide(values: Tensor, variance: Tensor) -> Tensor:
    """Whether scores with this variance between rankings are decided by ties (N,)."""
    return variance.sqrt() > _DECIDES * values.abs()


def over_orders(
    evaluate: Callable[[Task, Explanation, int], Outcome],
    task: Task,
    orders: TieOrders,
    key: Key,
    whole: bool = False,
) -> Outcome:
    """The mean outcome over the rankings of each sample; maps without ties are scored once, as they are.

    Only samples that have a further ranking are evaluated again, unless it shares its work among the
    `whole` task.
    """
    explanation = orders.explanation
    share = explanation.tied_pairs
    if orders.most == 1:
        first = evaluate(task, explanation, 0)
        return replace(first, details={**first.details, TIED_PAIRS: share})
    samples, outcomes = len(task.inputs), []
    # a curve may have as many steps as the longest sample has features
    whole = whole or task.space.valid is not None
    for which in range(orders.most):
        further = orders.beyond(which)
        rows = torch.tensor(further, device=task.inputs.device)
        if whole or len(further) == samples:
            found = evaluate(task, orders.strict(which, key), which)
        else:
            found = evaluate(task[rows], orders.take(further).strict(which, key), which)
        outcomes.append(_placed(found, samples, rows))
    outcome, variance = _mean(outcomes, orders.counts)
    decided = ties_decide(outcome.values, variance)
    details = {**outcome.details, TIED_PAIRS: share, TIE_VARIANCE: variance / orders.counts}
    return replace(outcome, flags={**outcome.flags, TIES_DECIDE: decided}, details=details)


def _placed(found: Outcome, samples: int, rows: Tensor) -> Outcome:
    """The outcome of some rows of a task, or of all of which these count, in float64; 0 in the others."""

    def place(part: Tensor) -> Tensor:
        out = part.new_zeros(samples, *part.shape[1:], dtype=torch.float64)
        own = part[rows] if len(part) == samples else part
        return out.index_copy_(0, rows, own.double())

    return replace(
        found,
        values=place(found.values),
        flags={reason: place(flag) > 0 for reason, flag in found.flags.items()},
        curve=None if found.curve is None else replace(found.curve, y=place(found.curve.y)),
        details={name: place(part) for name, part in found.details.items()},
    )


def _mean(outcomes: list[Outcome], counts: Tensor) -> tuple[Outcome, Tensor]:
    """The mean over `counts` (N,) rankings of each sample, and the variance (N,) of a score between them."""

    def over(parts: list[Tensor]) -> Tensor:
        total = reduce(_sum, parts)
        return total / counts.reshape(-1, *[1] * (total.dim() - 1))

    each = torch.stack([found.values for found in outcomes], -1)
    mean = each.sum(-1) / counts
    there = torch.arange(each.shape[-1], device=each.device) < counts[:, None]
    apart = torch.where(there, each - mean[:, None], 0.0).square().sum(-1)
    curves = [found.curve for found in outcomes if found.curve is not None]
    if curves:
        curves[0] = replace(max(curves, key=lambda curve: len(curve.x)), y=over([c.y for c in curves]))
    names = dict.fromkeys(name for found in outcomes for name in found.details)
    reasons = dict.fromkeys(reason for found in outcomes for reason in found.flags)
    outcome = replace(
        outcomes[0],
        values=mean,
        flags={r: reduce(torch.logical_or, [o.flags[r] for o in outcomes if r in o.flags]) for r in reasons},
        curve=curves[0] if curves else None,
        details={n: over([o.details[n] for o in outcomes if n in o.details]) for n in names},
    )
    return outcome, apart / (counts - 1).clamp(min=1)


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """a + b; a curve that ends early, where all its sample's regions are gone, stays where it ends."""
    if a.dim() > 1 and a.shape[-1] != b.shape[-1]:
        longest = max(a.shape[-1], b.shape[-1])
        a, b = (torch.cat([v, v[..., -1:].expand(-1, longest - v.shape[-1])], -1) for v in (a, b))
    return a + b
