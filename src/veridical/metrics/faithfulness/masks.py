"""What the metrics of this folder share: bands of a ranking, subsets of a size, and sums over masks."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import torch
from torch import Tensor

from veridical.functional.devices import at_a_time
from veridical.metrics.types import Explanation, Fill, Key, Response, Task
from veridical.perturb.probe import blocks, probe
from veridical.perturb.rules import Given, MaskRule, RandomSubsets
from veridical.perturb.shared_work import shared
from veridical.perturb.subset_table import FEW, places_of

_MASKS_KEPT = 2**26  # features of all masks of a task that are kept while several maps meet them: 64 MB


@dataclass(frozen=True, eq=False)
class RankBands:
    """Mask m removes the features of rank `counts[m - 1]` to `counts[m] - 1` alone, and nothing before.

    `ranks` (N, V) is a permutation per sample; `counts` is (M,) or (N, M), ascending.
    """

    ranks: Tensor
    counts: Tensor
    edges: Tensor = field(init=False)
    """Where bands begin and end (N or 1, M + 1)."""
    _small: tuple[Tensor, Tensor] = field(init=False)

    @property
    def count(self) -> int:
        return self.counts.shape[-1]

    def __post_init__(self) -> None:
        ends = self.counts if self.counts.dim() == 2 else self.counts[None]
        edges = torch.cat([torch.zeros_like(ends[:, :1]), ends], -1)
        # 16 bits move a quarter of the memory of 64, and memory is what building a mask costs
        small = torch.int16 if self.ranks.shape[-1] < 2**15 else torch.int32
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "_small", (self.ranks.to(small), edges.to(small)))

    def removed(self, samples: slice, masks: slice) -> Tensor:
        ranks, edges = self._small
        edges = edges if self.counts.dim() == 1 else edges[samples]
        begin, end = edges[:, :-1][:, masks], edges[:, 1:][:, masks]
        ranks = ranks[samples, None]
        return (ranks >= begin[..., None]).logical_and_(ranks < end[..., None])

    def taken(self, samples: int) -> Tensor | None:
        """Which bands hold a feature (N, M), or None where all do: a step takes one at least."""
        if self.counts.dim() == 1:
            return None
        return self.edges.expand(samples, -1).diff(dim=-1) > 0

    def signature(self, matters: Tensor) -> Tensor:
        """0 for a band none of whose features matter, so that it ties with the clean input."""
        gone = self.sums(matters.double())
        each = torch.arange(1, self.count + 1, device=gone.device)
        return torch.where(gone > 0, each, 0)

    def sums(self, values: Tensor) -> Tensor:
        """The sum of `values` (N, V) over every band (N, M)."""
        # added up band by band: differences of one running sum would break ties in the last bit
        ends = self.counts.long().expand(len(values), -1).contiguous()
        band = torch.searchsorted(ends, self.ranks.long().contiguous(), right=True)
        total = values.new_zeros(len(values), self.count + 1, dtype=torch.float64)
        return total.scatter_add_(-1, band, values.double())[:, :-1]


@dataclass(frozen=True, eq=False)
class Summing:
    """A rule that also adds up `weights` (N, V) over the features each mask removes.

    Masks that are drawn need then be drawn once only: the sums are there when the model has been asked.
    """

    rule: MaskRule
    weights: Tensor
    sums: Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = (len(self.weights), self.rule.count)
        object.__setattr__(self, "sums", self.weights.new_zeros(shape, dtype=torch.float64))

    @property
    def count(self) -> int:
        return self.rule.count

    def removed(self, samples: slice, masks: slice) -> Tensor:
        removed = self.rule.removed(samples, masks)
        self.sums[samples, masks] = masked_sums(removed, self.weights[samples])
        return removed

    def add_up(self, rows: int) -> None:
        """Add up over all masks without asking the model, in the blocks of a plan of `rows` rows."""
        for samples, masks in blocks(len(self.weights), self.count, rows):
            self.removed(samples, masks)


def sized_subsets(task: Task, key: Key, draws: int, sizes: Tensor | int) -> tuple[MaskRule, Tensor | None]:
    """`draws` random subsets of each size (S,) or (N, S), sizes fastest; and which of them count (N, M).

    Where a sample has few features and no more subsets of a size than draws, these are all of them, each
    once: what is averaged over them is then an exact mean, and the masks that are left over do not count.
    """
    features, valid = task.space.n_features, task.space.valid
    rule = RandomSubsets(key, task.draw_ids, features, draws, sizes, valid)
    if features > FEW and (valid is None or not bool((valid.sum(-1) <= FEW).any())):
        return rule, None
    counts = task.space.counts(len(task))
    each = torch.as_tensor(sizes, device=task.device).expand(
        len(task), -1 if isinstance(sizes, Tensor) else 1
    )
    wanted = [*zip(counts.repeat_interleave(each.shape[1]).tolist(), each.reshape(-1).tolist(), strict=True)]
    kinds = {(n, size) for n, size in wanted if n <= FEW and comb(n, size) <= draws}
    if not kinds:
        return rule, None
    masks = rule.removed(slice(0, len(task)), slice(0, rule.count)).clone()
    masks = masks.unflatten(1, (draws, each.shape[1]))
    there = torch.ones(masks.shape[:3], dtype=torch.bool, device=task.device)
    places = places_of(task)
    for n, size in kinds:
        every = torch.zeros(draws, n + 1, dtype=torch.bool, device=task.device)
        chosen = torch.tensor([*combinations(range(n), size)], device=task.device)
        every[: len(chosen)].scatter_(1, chosen, True)
        rows, columns = ((counts[:, None] == n) & (each == size)).nonzero(as_tuple=True)
        # features that do not exist are number -1, the last, which no subset has
        masks[rows, :, columns] = every.T[places[rows]].mT
        there[rows, :, columns] = torch.arange(draws, device=task.device) < len(chosen)
    return Given(masks.flatten(1, 2)), there.flatten(1, 2)


@dataclass(eq=False)
class _Asked:
    """What masks that know nothing of a map have given so far."""

    responses: Tensor | None = None
    drawn: Given | None = None


def asked_and_summed(
    task: Task,
    rule: MaskRule,
    weights: Tensor,
    name: Hashable,
    *,
    response: Response,
    fill: Fill | None,
    key: Key,
) -> tuple[Tensor, Tensor]:
    """Responses (N, M + 1), the clean one first, and the sums (N, M) of `weights` over what masks remove.

    The masks know nothing of the map: while the task's work is shared the model is asked once under a name,
    and maps after the second meet masks that are drawn already.
    """
    asked = shared(task, name, _Asked)
    summing = Summing(asked.drawn or rule, weights)
    if asked.responses is None:
        asked.responses = probe(task, summing, response=response, fill=fill, key=key, with_clean=True)
        return asked.responses, summing.sums
    rows = task.predictor.rows
    if asked.drawn is None and weights.numel() * rule.count <= _MASKS_KEPT:
        masks = weights.new_empty(len(weights), rule.count, weights.shape[-1], dtype=torch.bool)
        for samples, some in blocks(len(weights), rule.count, rows):
            masks[samples, some] = rule.removed(samples, some)
        asked.drawn = Given(masks)
        summing = Summing(asked.drawn, weights)
    summing.add_up(rows)
    return asked.responses, summing.sums


def masked_sums(removed: Tensor, weights: Tensor) -> Tensor:
    """Add up weights (n, V) over masks (n or 1, m, V), in float64, a piece at a time to bound memory."""
    samples, masks, features = len(weights), removed.shape[-2], weights.shape[-1]
    out = weights.new_empty(samples, masks, dtype=torch.float64)
    # a CPU adds up what its cache holds, a GPU what keeps it busy
    step = max(1, at_a_time(weights, 2**17, 2**24) // features)
    few = max(1, step // masks)
    # read as bytes: torch turns these into floats several times faster than truth values
    ones, values = removed.view(torch.uint8), weights.double()[..., None]
    for top in range(0, samples, few):
        mask = ones[top : top + few] if len(ones) == samples else ones
        for left in range(0, masks, step):
            sums = mask[:, left : left + step].double() @ values[top : top + few]
            out[top : top + few, left : left + step] = sums[..., 0]
    return out


def existing_values(explanation: Explanation) -> Tensor:
    """The values in float64 with 0 where a feature does not exist (N, V)."""
    values = explanation.values.double()
    return values if explanation.valid is None else values.masked_fill(~explanation.valid, 0.0)
