"""How far the right answer falls: one pass over all sizes, both signs and all draws of an explanation.

A map with ties stands for every ranking that agrees with it. They are averaged here, as metrics, studies and
sizes all measure by this. Of few features RFid and FFid are exact sums instead of means over draws: k of a
part's m features drawn without replacement are each of C(m, k) subsets equally often, so the expected answer
is the mean over those subsets of the table of all 2^n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.fidelity.correctness import correctness_of
from veridical.fidelity.removal import (
    SIGNS,
    Removals,
    Sign,
    budget,
    explanation_sizes,
    removal_counts,
    sizes_once,
)
from veridical.functional import area_under_curve, round_to_grid
from veridical.models.context import Memo
from veridical.perturb.fills import Backgrounds
from veridical.perturb.probe import probe
from veridical.perturb.rules import AllSubsets
from veridical.perturb.subset_table import FEW, bits_of, has_few, places_of
from veridical.values.explanation import Explanation
from veridical.values.task import Task
from veridical.values.ties import TieOrders, run_bounds

ANSWERS_AT_ONCE = 2**23
"""Outputs (samples x masks x outputs) held at a time: 64 MiB in float64."""
FEW_OF_MANY_ROWS = 8
"""The most features whose subsets are all asked where each takes many rows of the fill."""
_WEIGHTS_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Falls:
    """How far the right answer falls (N, S) over explanation sizes, as indicator and as probability.

    NaN where nothing is removed (a count of 0), since a fall of 0 there would say nothing of the map, and
    where a sample of few features has no size of its own at a level (`once`).
    """

    levels: tuple[float, ...]
    sizes: Tensor
    counts: Tensor
    once: Tensor
    indicator: Tensor
    probability: Tensor
    variance: Tensor
    """Of the mean over sizes, between rankings that agree with a map (2, N): indicator, probability."""
    orders: Tensor
    """How many such rankings each sample was measured along (N,)."""

    def variant(self, name: str) -> Tensor:
        """The falls of one variant by name."""
        return self.indicator if name == "indicator" else self.probability


def mean_over_sizes(falls: Tensor) -> Tensor:
    """The mean over the sizes that have a value (N,); NaN where none has."""
    return falls.nanmean(-1)


def area_over_sizes(falls: Tensor, levels: Sequence[float]) -> Tensor:
    """The trapezoid area over the sizes where a row has a value; of a single one that value."""
    level = torch.tensor(tuple(levels), dtype=torch.float64, device=falls.device).expand_as(falls)
    there = ~falls.isnan()
    area = area_under_curve(falls.nan_to_num(0.0), level, there)
    return torch.where(there.sum(-1) > 1, area, falls.nanmean(-1))


def measure(
    task: Task,
    explanation: Explanation,
    truth: Tensor,
    *,
    levels: Sequence[float],
    alpha: float | Mapping[Sign, float] = 0.5,
    beta: float | None = None,
    draws: int = 50,
    signs: Sequence[Sign] = SIGNS,
    bernoulli: bool = False,
    key: Key = Key(0),  # noqa: B008 (frozen)
    memo: Memo | None = None,
) -> Mapping[Sign, Falls]:
    """Measure how far the right answer falls at every size and sign, over all draws, in one pass.

    The model is evaluated on samples x sizes x signs x draws rows (times the repeats of the fill). Of few
    features all subsets are evaluated instead, and the falls are exact expectations.

    Parameters
    ----------
    task : Task
        The model that sees masked inputs, and the samples.
    explanation : Explanation
        Whose ranking decides what is removed; ties are averaged over the rankings that agree with it.
    truth : Tensor
        The right answer of each sample.
    levels : sequence of float
        Explanation sizes, as shares of the features.
    alpha : float or mapping of sign to float
        Share of the explanation (or of the rest) that is removed.
    beta : float, optional
        Caps the counts at floor(beta * n); None leaves them uncapped.
    draws : int
        Random parts drawn per sample, size and sign.
    signs : sequence of {"plus", "minus"}
        Whether the explanation is removed, or all but the explanation.
    bernoulli : bool
        Whether each feature leaves on its own with the probability that gives the count on average.
    key : Key
        Key of the draws.
    memo : Memo, optional
        What the call has computed so far: of few features each subset is evaluated once.

    Returns
    -------
    dict of str to Falls
        Sizes, counts and falls of each sign.
    """
    levels, memo = evaluated_sizes(task, levels), memo or Memo()
    n = task.space.counts(len(task)).to(task.device)
    sizes, cap = explanation_sizes(n, levels), None if beta is None else budget(n, beta)
    share = alpha if isinstance(alpha, Mapping) else dict.fromkeys(signs, alpha)
    # a single feature cannot be split into an explanation and the rest
    counts = {
        sign: removal_counts(sizes, n, sign, share[sign], cap).masked_fill(n[:, None] < 2, 0)
        for sign in signs
    }
    first, behind = torch.zeros_like(sizes), n[:, None].expand_as(sizes)
    ends = [(first, sizes) if sign == "plus" else (sizes, behind) for sign in signs]
    edges = torch.cat([torch.stack(pair) for pair in ends], -1)
    parts = torch.cat([*counts.values()], -1)
    ranks = explanation.descending_ranks.to(task.device)
    whole = beta is None and all(share[sign] == 1 for sign in signs)
    rule = Removals(key / "removal", task.draw_ids, ranks, edges, parts, draws, bernoulli, whole)
    once = torch.ones_like(sizes, dtype=torch.bool)
    if task.space.valid is not None:
        once = sizes_once(n, sizes, levels)
    nothing = torch.stack([(kept < 1) | ~once for kept in counts.values()], 1)
    orders = tie_orders(task, explanation, key)
    mean, variance, measured = _over_orders(task, rule, truth, orders, nothing, key, memo)
    out: dict[Sign, Falls] = {}
    for place, sign in enumerate(signs):
        indicator, probability = mean[:, :, place]
        spread = variance[:, :, place]
        out[sign] = Falls(levels, sizes, counts[sign], once, indicator, probability, spread, measured)
    return out


def evaluated_sizes(task: Task, levels: Sequence[float]) -> tuple[float, ...]:
    """The sizes evaluated: those given, or where all samples have the same few features, whole ones."""
    n = task.space.n_features
    if task.space.valid is not None or not 2 <= n <= FEW:
        return tuple(levels)
    sizes = explanation_sizes(torch.tensor([n]), levels).unique()
    return tuple((sizes.double() / n).tolist())


def tie_orders(task: Task, explanation: Explanation, key: Key) -> TieOrders:
    """The rankings a map stands for; those that differ in features equal to their fill are one."""
    matters = None
    if explanation.has_ties and not task.fill.looks_at_mask:
        matters = Backgrounds(task, task.fill, key).matters()
    return TieOrders.of(explanation, matters)


def _over_orders(
    task: Task, rule: Removals, truth: Tensor, orders: TieOrders, nothing: Tensor, key: Key, memo: Memo
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean falls (2, N, signs, sizes) over rankings that agree with the map, as indicator and as probability.

    NaN where `nothing` (N, signs, sizes) is removed. Behind them the variance (2, N, signs) between rankings
    of the mean over sizes, and how many rankings (N,) there were. Rankings share the draws: about as many in
    all as for a map without ties, so that there are no more rankings than draws; of few features, of which no
    mask is evaluated twice, each has them all.
    """
    mean = nothing.new_zeros(2, *nothing.shape, dtype=torch.float64)
    variance = nothing.new_zeros(2, *nothing.shape[:2], dtype=torch.float64)
    counts = orders.counts.clone()
    few = has_few(task, task.fill)
    draws = not rule.whole or rule.draws > 1
    shared = [draws] * len(task) if few is None else (~few & draws).tolist()
    kinds = [*zip(_exact_counts(task, rule), orders.each, shared, strict=True)]
    for kind in sorted(set(kinds)):
        rows = [row for row, own in enumerate(kinds) if own == kind]
        n, many, share = kind
        ties = many > 1
        index, whole = torch.tensor(rows, device=task.device), len(rows) == len(kinds)
        part, some, ranked = (
            (task, rule, orders) if whole else (task[index], rule.take(index), orders.take(rows))
        )
        table = _subset_table(part, truth[index], key, n, memo) if n else None
        if share:
            of_each = -(-rule.draws // many)
            many, some = -(-rule.draws // of_each), replace(some, draws=of_each)
            counts[index], ranked = many, ranked.at_most(many)
        each = []
        for which in range(many):
            order = ranked.strict(which, key) if ties else ranked.explanation
            if table is None:
                own = key / which if share and which else key
                ranks = order.descending_ranks.to(task.device)
                drawn = replace(some, key=own / "removal", ranks=ranks)
                each.append(_drawn(part, drawn, truth[index], own, memo))
            else:
                each.append(_expected(table, part, some, order))
        gone = nothing[index]
        falls = torch.stack(each).reshape(many, 2, *gone.shape).masked_fill(gone, torch.nan)
        mean[:, index] = falls.mean(0)
        if many > 1:
            variance[:, index] = falls.nanmean(-1).var(0)
        if many > 1 and table is not None:
            # the table tells the mean over all rankings, not only over those whose spread is seen
            exact = _expected(table, part, some, ranked.explanation).reshape(2, *gone.shape)
            mean[:, index] = exact.masked_fill(gone, torch.nan)
    return mean, variance, counts


def _exact_counts(task: Task, rule: Removals) -> list[int]:
    """The number of features of each sample all of whose subsets are evaluated in place of draws, else 0.

    These have up to 12 features (8 where the fill has many rows), and draws would evaluate as many masks.
    """
    if has_few(task, task.fill) is None or rule.bernoulli or rule.draws == 1:
        return [0] * len(task)
    most = FEW if task.fill.repeats_on(task) == 1 else FEW_OF_MANY_ROWS
    counts = task.space.counts(len(task)).tolist()
    return [n if n <= most and rule.count >= 2**n else 0 for n in counts]


def _drawn(task: Task, rule: Removals, truth: Tensor, key: Key, memo: Memo) -> Tensor:
    """Mean falls (2, N, parts) over draws, as indicator and as probability."""
    size = max(1, ANSWERS_AT_ONCE // max(1, rule.count * 2 * task.n_outputs))
    found: list[Tensor] = []
    for at in range(0, len(task), size):
        piece = slice(at, at + size)
        whole = size >= len(task)
        part, some = (task, rule) if whole else (task[piece], rule.take(piece))
        outputs = probe(part, some, key=key, with_clean=True, all_outputs=True, predictions=True, memo=memo)
        values = round_to_grid(
            torch.stack(correctness_of(outputs, truth[piece], part)), task.predictor.rounding
        )
        found.append(values[..., :1] - values[..., 1:].unflatten(-1, (rule.draws, -1)).mean(2))
    return torch.cat(found, 1) if len(found) > 1 else found[0]


def _subset_table(task: Task, truth: Tensor, key: Key, n: int, memo: Memo) -> Tensor:
    """Correctness (2, N, 2^n) once each subset of n features is gone, as indicator and as probability."""
    rule = AllSubsets(places_of(task), 2**n - 1)
    outputs = probe(task, rule, key=key, with_clean=True, all_outputs=True, predictions=True, memo=memo)
    return round_to_grid(torch.stack(correctness_of(outputs, truth, task)))


def _expected(table: Tensor, task: Task, rule: Removals, explanation: Explanation) -> Tensor:
    """Expected falls (2, N, parts) over the subsets each part may lose, and over all rankings that agree.

    A part's first or last rank may lie inside a run of r tied features, of which j belong to the part, any j
    equally often: b of them are among these in C(r - b, j - b) of C(r, j) cases.
    """
    code = torch.arange(table.shape[-1], device=table.device)
    size, places = bits_of(code).sum(-1), places_of(task)
    bit = torch.where(places >= 0, 1 << places.clamp(min=0), 0)
    low, high = run_bounds(explanation)
    at_once = max(1, _WEIGHTS_AT_ONCE // (rule.counts.shape[-1] * len(code)))
    found = []
    for at in range(0, len(task), at_once):
        rows = slice(at, at + at_once)
        begin, end = rule.edges[:, rows].long().unsqueeze(-1)
        first, behind = low[rows, None], high[rows, None]
        overlap = torch.minimum(end, behind) - torch.maximum(begin, first)
        cut = (overlap > 0) & (overlap < behind - first)
        sure, tied = (torch.where(where, bit[rows, None], 0).sum(-1) for where in ((overlap > 0) & ~cut, cut))
        run, own = (torch.where(cut, each, 0).amax(-1) for each in (behind - first, overlap))
        among = bits_of(code & tied[..., None]).sum(-1)
        ways = _binomial(run[..., None] - among, own[..., None] - among)
        possible = (code & ~(sure | tied)[..., None]) == 0
        share = ways * (possible & (size == rule.counts[rows, :, None]))
        share /= share.sum(-1, keepdim=True).clamp(min=1)
        found.append((share @ table[:, rows].movedim(0, -1)).movedim(-1, 0))
    return table[..., :1] - torch.cat(found, 1)


def _binomial(n: Tensor, k: Tensor) -> Tensor:
    """C(n, k), and 0 where k is below 0 or above n."""
    logs = (torch.lgamma(1.0 + each.double()) for each in (n, k, n - k))
    return (next(logs) - next(logs) - next(logs)).exp().round()
