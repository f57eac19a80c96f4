"""What the metrics of this folder share: bands of a ranking, subsets of a size, and sums over masks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import torch
from torch import Tensor

from veridical.errors import NotApplicableError
from veridical.functional.devices import at_a_time
from veridical.metrics import Given, Metric, RandomSubsets, RankingMetric, RankThreshold
from veridical.metrics.types import Context, Explanation, Fill, Key, Response, Task
from veridical.perturb.probe import blocks
from veridical.perturb.rules import Groups, MaskRule
from veridical.perturb.subset_table import FEW, places_of
from veridical.values.regions import Regions, Removal, removal
from veridical.values.ties import TieOrders


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

    Masks that are drawn need then be drawn once only: the sums are there when the model has been evaluated,
    and NaN where it was not.
    """

    rule: MaskRule
    weights: Tensor
    sums: Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = (len(self.weights), self.rule.count)
        object.__setattr__(self, "sums", self.weights.new_full(shape, torch.nan, dtype=torch.float64))

    @property
    def count(self) -> int:
        return self.rule.count

    def removed(self, samples: slice, masks: slice) -> Tensor:
        removed = self.rule.removed(samples, masks)
        self.sums[samples, masks] = masked_sums(removed, self.weights[samples])
        return removed

    def add_up(self, rows: int) -> None:
        """Add up what is left without evaluating the model, in the blocks of a plan of `rows` rows."""
        if not bool(self.sums.isnan().any()):
            return
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


def responses_and_sums(
    metric: Metric, task: Task, rule: MaskRule, weights: Tensor, context: Context
) -> tuple[Tensor, Tensor]:
    """Responses (N, M + 1), the clean one first, and the sums (N, M) of `weights` over what masks remove.

    The masks know nothing of the map, so that all maps of one call share the responses, and those to other
    outputs of the same samples.
    """
    summing, name = Summing(rule, weights), (metric, context.key)
    responses = context.memo.once(task, name, lambda: metric.responses(task, summing, context, name))
    summing.add_up(task.predictor.rows)
    return responses, summing.sums


def band_responses(metric: Metric, task: Task, rule: RankBands, context: Context) -> Tensor:
    """Responses (N, M + 1) to the input and without each band of a ranking.

    Bands of one feature each are the same masks for all maps, which share the responses to them.
    """
    features = task.space.n_features
    if task.space.valid is not None or rule.count < features:
        return metric.responses(task, rule, context)
    alone = metric.responses(task, Groups(features, task.device), context, "each feature alone")
    return torch.cat([alone[:, :1], alone[:, 1:].gather(-1, rule.ranks.argsort(-1))], -1)


def masked_sums(removed: Tensor, weights: Tensor) -> Tensor:
    """Add up weights (n, V) over masks (n or 1, m, V), in float64, a piece at a time to bound memory."""
    samples, masks, features = len(weights), removed.shape[-2], weights.shape[-1]
    out = weights.new_empty(samples, masks, dtype=torch.float64)
    # a CPU adds up what its cache holds, a GPU what keeps it busy
    step = max(1, at_a_time(weights, 2**17, 2**24) // features)
    few = max(1, step // masks)
    # read as bytes: torch turns these into floats several times faster than booleans
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


@dataclass(frozen=True)
class RegionMetric(RankingMetric):
    """Base of metrics that remove whole regions by relevance; a subclass has a `response` and a `fill`."""

    def regions_of(self, task: Task) -> Regions:
        """The regions that are removed one after the other."""
        raise NotApplicableError(f"metric '{self.name}' does not say which regions it removes")

    def relevance_of(self, task: Task, explanation: Explanation) -> Tensor:
        """The relevance of each region (N, R): by default the sum over its features."""
        return self.regions_of(task).relevance(explanation.values)

    def tie_orders(self, task: Task, explanation: Explanation, key: Key) -> TieOrders:
        # ties inside a region do not move it
        tied = self.regions_of(task).tied(self.relevance_of(task, explanation))
        return super().tie_orders(task, explanation, key).where(tied)

    def without_regions(
        self, task: Task, explanation: Explanation, context: Context, most: int, least_first: bool = False
    ) -> tuple[Tensor, Removal]:
        """Responses (N, 1 + most) to the input and without its first regions, and the order of these."""
        ranks = None if self.ties == "stable" else explanation.ranks
        relevance = self.relevance_of(task, explanation)
        order = removal(self.regions_of(task), relevance, least_first, ranks)
        rule = RankThreshold(order.ranks, order.gone[:, :most])
        return self.responses(task, rule, context), order


@dataclass(frozen=True, eq=False)
class RankPath:
    """A score sum_m w_m y_m, y_m the response once the first `counts[m]` features of a ranking are gone.

    `counts` (M,) or (N, M) ascends; `weights` (N or 1, M + 1) begin with that of the untouched input.
    """

    counts: Tensor
    weights: Tensor
    most_relevant_first: bool
    response: Response = "probability"
    fill: Fill | None = None

    def score(self, responses: Tensor) -> Tensor:
        """The scores (N, K) of responses (N, K, M + 1)."""
        return (responses * self.weights[:, None]).sum(-1)

    def ends_empty(self, task: Task) -> bool:
        """Whether the last step leaves no feature in any sample, so that all rankings end alike."""
        last = self.counts[..., -1].expand(len(task)) if self.counts.dim() == 1 else self.counts[:, -1]
        return bool((last == task.space.counts(len(task)).to(last.device)).all())

    def dense_weights(self, sample: int, features: int) -> Tensor:
        """The weight (D + 1,) of the response once 0..D features are gone; 0 where the path does not stop."""
        counts = self.counts if self.counts.dim() == 1 else self.counts[sample]
        weights = self.weights[min(sample, len(self.weights) - 1)].double()
        places = torch.cat([torch.zeros_like(counts[:1]), counts]).long()
        return weights.new_zeros(features + 1).scatter_add_(0, places, weights)


def trapezoid(points: Tensor) -> Tensor:
    """The weights (N, P) with which the trapezoid rule adds up a curve over ascending points (N, P)."""
    half = points.double().diff(dim=-1) / 2
    nothing = torch.zeros_like(half[:, :1])
    return torch.cat([half, nothing], -1) + torch.cat([nothing, half], -1)
