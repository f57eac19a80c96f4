"""Shapley values: from all subsets, from random orders, and by KernelSHAP's weighted least squares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import comb, factorial
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import MANY, Count, Within
from veridical.core.key import Key
from veridical.explainers.base import FILL_KEY, register
from veridical.explainers.diagnostics import difference_from_empty, record_split_half
from veridical.explainers.occlusion import FitsBank, MaskingExplainer, SharesOut, mask_pieces, responses_to
from veridical.explainers.surrogates import least_squares, sample_blocks
from veridical.models.context import Context
from veridical.perturb.mask_bank import Bank
from veridical.perturb.rules import AllSubsets
from veridical.perturb.subset_table import FEW, places_of
from veridical.values.task import Task

# --- all subsets ------------------------------------------------------------------------------------------


def shapley_values(responses: Tensor, features: int) -> Tensor:
    """Shapley values (N, D) of responses (N, 2^D), where bit i of a number says that feature i is gone.

    phi_i = sum over sets S without i of |S|! (D - |S| - 1)! / D! (v(S with i) - v(S)).
    """
    code = torch.arange(2**features, device=responses.device)
    gone = torch.stack([(code >> i) & 1 for i in range(features)]).bool()
    kept = features - gone.sum(0)
    weight = [factorial(s) * factorial(features - s - 1) / factorial(features) for s in range(features)]
    table = torch.tensor([*weight, 0.0], dtype=torch.float64, device=responses.device)
    # a set without i is a number whose bit i is set; with i, the same without that bit
    each = [
        ((responses[:, code[g] ^ (1 << i)] - responses[:, g]) * table[kept[g]]).sum(-1)
        for i, g in enumerate(gone)
    ]
    return torch.stack(each, -1)


@register
@dataclass(frozen=True)
class ExactShapley(SharesOut):
    """The Shapley values of the explained output in the game "which features are there", from all 2^D sets.

    For up to 12 features. Over reference rows they are the interventional values of those rows, and sum to
    y(x) less the mean response without features. What is evaluated here serves every metric by masks.
    """

    name: ClassVar[str] = "exact_shapley"
    summary: ClassVar[str] = "Shapley values from all subsets of up to 12 features"
    paper: ClassVar[str] = "Shapley 1953; Lundberg and Lee 2017"

    def inapplicable_reason(self, task: Task) -> str | None:
        most = int(task.space.counts(len(task)).max())
        if most > FEW:
            return (
                f"it evaluates all 2^D subsets of up to {FEW} features, this task has {most}; use kernel_shap"
            )
        return super().inapplicable_reason(task)

    def rows_per_sample(self, task: Task) -> int:
        return 2 ** int(task.space.counts(len(task)).max())

    def masks(self, task: Task) -> Tensor:
        masks: Tensor = 2 ** task.space.counts(len(task)) - 1
        return masks

    def _pieces(self, task: Task) -> Iterator[Task]:
        yield task

    def attribute(self, task: Task, context: Context) -> Tensor:
        counts, places = task.space.counts(len(task)), places_of(task)
        out = torch.zeros(places.shape, dtype=torch.float64, device=task.device)
        for n in counts.unique().tolist():
            rows = (counts == n).nonzero()[:, 0]
            rule = AllSubsets(places[rows], 2**n - 1)
            responses = responses_to(task[rows], rule, self.fill_key(context.key), context)
            values = shapley_values(responses, n)
            spread = values.gather(-1, places[rows].clamp(min=0))
            out[rows] = torch.where(places[rows] >= 0, spread, 0.0)
        return out.to(task.outputs.dtype)


# --- random orders ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Leaving:
    """Mask m removes the first 1 + m % (V - 1) features of order m // (V - 1); the last mask removes all."""

    ranks: Tensor
    """(N, orders, V): the place of each feature in each order."""

    @property
    def count(self) -> int:
        orders, features = self.ranks.shape[1:]
        return orders * (features - 1) + 1

    def removed(self, samples: slice, masks: slice) -> Tensor:
        steps = self.ranks.shape[-1] - 1
        numbers = torch.arange(masks.start, masks.stop, device=self.ranks.device)
        last = numbers == self.count - 1
        order = (numbers // max(1, steps)).clamp(max=self.ranks.shape[1] - 1)
        gone = torch.where(last, self.ranks.shape[-1], numbers % max(1, steps) + 1)
        return self.ranks[samples][:, order] < gone[:, None]


@register
@dataclass(frozen=True)
class ShapleySampling(MaskingExplainer):
    """The mean over random orders of what the output loses when a feature leaves in its turn.

    Every second order is the one before it turned round, which makes the values exact for models without
    interactions of three features or more. In each order the losses sum to y(x) - y(nothing).
    Rows: orders x (features - 1) + 1 for each sample, times those of the fill; on images use patches or
    superpixels.
    """

    orders: Count = 10
    """How many orders the features leave in."""
    name: ClassVar[str] = "shapley_sampling"
    summary: ClassVar[str] = "Shapley values from random orders in which features leave"
    paper: ClassVar[str] = "Castro et al. 2009; Mitchell et al. 2022"
    completeness: ClassVar[str] = "values sum to y(x) - y(everything removed)"
    stochastic: ClassVar[bool] = True

    def _expected_sum(self, task: Task, key: Key) -> Tensor:
        return difference_from_empty(task, FILL_KEY)

    def masks(self, task: Task) -> int:
        return self.orders * (task.space.n_features - 1) + 1

    def rows_per_sample(self, task: Task) -> int:
        return self.masks(task) * task.fill.repeats_on(task)

    def _pieces(self, task: Task) -> Iterator[Task]:
        return mask_pieces(task, self.rows_per_sample(task))

    def attribute(self, task: Task, context: Context) -> Tensor:
        ranks = self._ranks(task, context.key)
        responses = responses_to(task, Leaving(ranks), FILL_KEY, context, ("orders", context.key))
        clean, steps, empty = responses[:, :1], responses[:, 1:-1], responses[:, -1:]
        steps = steps.unflatten(1, (self.orders, ranks.shape[-1] - 1))
        ends = [end[:, None].expand(-1, self.orders, -1) for end in (clean, empty)]
        curve = torch.cat([ends[0], steps, ends[1]], -1)
        lost = (curve[..., :-1] - curve[..., 1:]).gather(-1, ranks)
        record_split_half(context, task, self.orders, partial(_half_mean, lost))
        return lost.mean(1).to(task.outputs.dtype)

    def _ranks(self, task: Task, key: Key) -> Tensor:
        features, valid = task.space.n_features, task.space.valid
        draws = torch.arange(-(-self.orders // 2), device=task.device)
        ranks = keyed.random_ranks(key / "orders", task.draw_ids, draws, features, valid)
        last = features - 1 if valid is None else valid.sum(-1)[:, None, None] - 1
        # padding keeps its places at the end
        turned = torch.where(ranks <= last, last - ranks, ranks)
        return torch.stack([ranks, turned], 2).flatten(1, 2)[:, : self.orders]


def _half_mean(lost: Tensor, half: int) -> Tensor:
    """The mean over every second pair of orders: one and the same turned round belong together."""
    own = torch.arange(lost.shape[1], device=lost.device) // 2 % 2 == half
    return (lost * own[:, None]).sum(1) / own.sum()


# --- weighted least squares -------------------------------------------------------------------------------


_SPARE = 8  # pairs beyond one a feature, from which on unknowns for the size of a set can be spared


@register
@dataclass(frozen=True)
class KernelShap(FitsBank, SharesOut):
    """Shapley values of the explained output in the game "which features are there".

    Minimises sum_S k(S) (v(S) - v(none) - sum_{i in S} phi_i)^2 subject to sum phi = v(all) - v(none), with
    the Shapley kernel k(S) = (D - 1) / (C(D, s) s (D - s)), s = |S| (Lundberg and Lee 2017, theorem 2).
    Where all 2^D sets fit in `budget`, every set is evaluated and the values are the Shapley values
    themselves. Otherwise sets are drawn from the kernel, sizes spread evenly over its mass, and each is
    evaluated with its complement (Covert and Lee 2021), and what responses owe to the size of a set alone is
    fitted beside. On an image with more features than one for 8 rows, neighbours are joined into cells, one
    for 12 rows, which share their value equally: more unknowns than responses can tell apart are noise.
    """

    budget: Annotated[int, Within(3, MANY)] = 512
    """Rows evaluated per sample, at most."""
    join: bool = True
    """Whether neighbouring pixels or patches are joined where the budget is too small to tell them apart."""
    name: ClassVar[str] = "kernel_shap"
    version: ClassVar[int] = 4
    summary: ClassVar[str] = "Shapley values by weighted least squares"
    paper: ClassVar[str] = "Lundberg and Lee 2017"

    def responses(self) -> int:
        return self.budget

    def joins(self) -> bool:
        return self.join

    def fitted_to(self, bank: Bank, context: Context) -> Tensor:
        responses, (samples, count, width) = bank.responses, bank.masks.shape
        valid, sets, kept = bank.masks[:, 1], bank.masks[:, 2::2], bank.masks[:, 3::2]
        pairs = sets.shape[1]
        total = responses[:, :1] - responses[:, 1:2]
        out = (total / valid.sum(-1, keepdim=True)) * valid
        for some in sample_blocks(samples, pairs * width, out.device) if pairs else ():
            weights = self._weights(sets[some], count.bit_length() - 1) if bank.every else None
            of_pairs = responses[some, 2:].unflatten(-1, (-1, 2))
            out[some] += _deviations(kept[some], of_pairs, total[some], valid[some], weights)
            if not bank.every:
                # sizes run evenly from the smallest to the largest, so that every second set has them all
                half = partial(_half_fit, kept[some], of_pairs, total[some], valid[some])
                record_split_half(context, bank.task, pairs, half, some)
        return out

    @staticmethod
    def _weights(removed: Tensor, features: int) -> Tensor:
        kernel = [0.0] + [
            (features - 1) / (comb(features, s) * s * (features - s)) for s in range(1, features)
        ]
        return torch.tensor(kernel, dtype=torch.float64, device=removed.device)[removed.sum(-1)]


def _half_fit(kept: Tensor, responses: Tensor, total: Tensor, valid: Tensor, half: int) -> Tensor:
    return _deviations(kept[:, half::2], responses[:, half::2], total, valid, None)


def _deviations(
    kept: Tensor, responses: Tensor, total: Tensor, valid: Tensor, weights: Tensor | None
) -> Tensor:
    """What the values add to equal shares: they sum to 0, so the constraint holds by itself.

    `responses` (N, pairs, 2) are those without each set and without what it leaves. Both carry the same
    equation with opposite signs once rows are measured from their mean over features, so half the difference
    of their responses stands for both. Without weights all weigh 1, and sets that are a sample of all have
    two unknowns more, for what the response owes to how many features there are: over all sets of one size
    the equations of a feature cancel, so that is no part of any value, but in a sample it is most of the
    noise.
    """
    there = valid.sum(-1, keepdim=True).double()
    size = kept.sum(-1).double()
    share = size / there
    half = (responses[..., 0] - responses[..., 1]) / 2 - (share - 0.5) * total
    spread = size * (1 - share)
    scale = (spread if weights is None else spread * weights).sum(-1, keepdim=True) / there
    # with fewer sets than features the smallest solution is taken: a vanishing ridge
    ridge = 1e-11 * scale[:, 0]
    rows = (kept.view(torch.uint8).double() - share[..., None]).mul_(valid[:, None])
    # no row decides on "all alike"; one more that sets it to 0 changes nothing else
    rows = torch.cat([rows, valid[:, None] / there[..., None].sqrt()], 1)
    half = torch.cat([half, torch.zeros_like(scale)], 1)
    if weights is None and share.shape[-1] >= kept.shape[-1] + _SPARE:
        size = F.pad(share - 0.5, (0, 1))
        rows = torch.cat([rows, size[..., None], size[..., None] ** 3], -1)
    weights = torch.cat([torch.ones_like(share) if weights is None else weights, scale], 1)
    fitted = least_squares(rows, half, weights, ridge)[..., : kept.shape[-1]]
    return fitted - fitted.sum(-1, keepdim=True) / there * valid
