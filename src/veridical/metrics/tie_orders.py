"""Maps with ties: judged by all rankings that agree with them, not by the raster's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from veridical.metrics import Explanation, Key, Outcome, Task
from veridical.metrics.base import TIED_PAIRS
from veridical.values.ties import TieOrders

TIE_VARIANCE = "variance of tie orders"
"""The detail that says how far a score moves between rankings that agree with its map."""
TIES_DECIDE = "ties decide: the score moves between rankings that agree with the map"
_CURVE = "the curve itself"
_DECIDES = 0.05
"""Standard deviation between rankings, as a share of the score, from which ties are said to decide it."""


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
    """The mean outcome over the rankings of each sample; maps without ties are judged once, as they are.

    Only samples that have a further ranking are evaluated again, unless it shares its work among the
    `whole` task.
    """
    explanation = orders.explanation
    share = explanation.tied_pairs
    if orders.most == 1:
        first = evaluate(task, explanation, 0)
        return replace(first, details={**first.details, TIED_PAIRS: share})
    sums = _Sums(len(task.inputs))
    sums.add(evaluate(task, orders.strict(0, key), 0))
    # a curve may have as many steps as the longest sample has features
    whole = whole or task.space.valid is not None
    for which in range(1, orders.most):
        more, further = orders.counts > which, orders.beyond(which)
        if whole or len(further) == len(task.inputs):
            sums.add(evaluate(task, orders.strict(which, key), which), more=more)
        else:
            rows = torch.tensor(further, device=task.inputs.device)
            sums.add(evaluate(task[rows], orders.take(further).strict(which, key), which), rows)
    outcome, variance = sums.mean(orders.counts)
    decided = ties_decide(outcome.values, variance)
    details = {**outcome.details, TIED_PAIRS: share, TIE_VARIANCE: variance / orders.counts}
    return replace(outcome, flags={**outcome.flags, TIES_DECIDE: decided}, details=details)


class _Sums:
    """Outcomes of all samples, or of some, added up by name."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._first: Outcome | None = None
        self._values: list[Tensor] = []
        self._named: dict[str, Tensor] = {}
        self._flags: dict[str, Tensor] = {}

    def add(self, outcome: Outcome, rows: Tensor | None = None, more: Tensor | None = None) -> None:
        """Add the outcome of these rows, or of all samples where only those that have `more` count."""

        def spread(part: Tensor) -> Tensor:
            if rows is not None:
                out = part.new_zeros(self._samples, *part.shape[1:], dtype=torch.float64)
                return out.index_copy_(0, rows, part.double())
            if more is None:
                return part.double()
            return torch.where(more.reshape(-1, *[1] * (part.dim() - 1)), part.double(), 0.0)

        first = self._first or outcome
        if (
            first.curve is not None
            and outcome.curve is not None
            and len(outcome.curve.x) > len(first.curve.x)
        ):
            first = replace(first, curve=outcome.curve)
        self._first = first
        self._values.append(spread(outcome.values))
        named = (
            dict(outcome.details) if outcome.curve is None else {**outcome.details, _CURVE: outcome.curve.y}
        )
        for name, part in named.items():
            found = spread(part)
            self._named[name] = _sum(self._named[name], found) if name in self._named else found
        for reason, flag in outcome.flags.items():
            raised = spread(flag) > 0
            self._flags[reason] = self._flags[reason] | raised if reason in self._flags else raised

    def mean(self, counts: Tensor) -> tuple[Outcome, Tensor]:
        """The mean outcome, and the variance (N,) of a score between rankings."""

        def over(total: Tensor) -> Tensor:
            return total / counts.reshape(-1, *[1] * (total.dim() - 1))

        assert self._first is not None
        each = torch.stack(self._values, -1)
        mean = over(each.sum(-1))
        there = torch.arange(each.shape[-1], device=each.device) < counts[:, None]
        apart = torch.where(there, each - mean[:, None], 0.0).square().sum(-1)
        details, curve = {name: over(total) for name, total in self._named.items()}, self._first.curve
        if curve is not None:
            curve = replace(curve, y=details.pop(_CURVE))
        outcome = replace(self._first, values=mean, flags=self._flags, curve=curve, details=details)
        return outcome, apart / (counts - 1).clamp(min=1)


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """a + b; a curve that ends early, where all its sample's regions are gone, stays where it ends."""
    if a.dim() > 1 and a.shape[-1] != b.shape[-1]:
        longest = max(a.shape[-1], b.shape[-1])
        a, b = (torch.cat([v, v[..., -1:].expand(-1, longest - v.shape[-1])], -1) for v in (a, b))
    return a + b
