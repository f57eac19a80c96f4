"""KernelSHAP: Shapley values as a constrained weighted least squares problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import MANY, Within
from veridical.core.key import Key
from veridical.explainers.base import register
from veridical.explainers.coalitions import FitsCells, SharesOut
from veridical.explainers.least_squares import least_squares, sample_blocks, shared_counts, solved
from veridical.explainers.mask_rules import SizedSubsets, in_words, mask_pieces, written_out
from veridical.explainers.repeatability import note_halves
from veridical.perturb.probe import probe
from veridical.perturb.rules import AllSubsets, Given, MaskRule
from veridical.values.task import Task

_SPARE = 8  # pairs beyond one a feature, from which on unknowns for the size of a set can be spared


@dataclass(frozen=True, eq=False)
class _Paired:
    """Mask 0 removes everything; masks 2j + 1 and 2j + 2 remove the j-th set and its complement."""

    sets: Given
    valid: Tensor

    @property
    def count(self) -> int:
        return 2 * self.sets.count + 1

    def removed(self, samples: slice, masks: slice) -> Tensor:
        start, stop = masks.start, masks.stop
        everything = in_words(self.valid[samples])
        chosen = in_words(self.sets.removed(samples, slice(max(start - 1, 0) // 2, max(stop, 1) // 2)))
        out = chosen.new_empty(len(chosen), stop - start, chosen.shape[-1])
        # sets stand at odd places; where the first place is even, the first set was asked about before
        sets, rest = out[:, (start + 1) % 2 :: 2], out[:, start % 2 if start else 2 :: 2]
        asked = 1 if start and start % 2 == 0 else 0
        sets.copy_(chosen[:, asked : asked + sets.shape[1]])
        # what is left of everything without a part of it
        torch.bitwise_xor(chosen[:, : rest.shape[1]], everything[:, None], out=rest)
        if start == 0:
            out[:, 0] = everything
        return out.view(torch.bool)


@register
@dataclass(frozen=True)
class KernelShap(FitsCells, SharesOut):
    """Shapley values of the explained output in the game "which features are there".

    Minimises sum_S k(S) (v(S) - v(none) - sum_{i in S} phi_i)^2 subject to sum phi = v(all) - v(none), with
    the Shapley kernel k(S) = (D - 1) / (C(D, s) s (D - s)), s = |S| (Lundberg and Lee 2017, theorem 2).
    Where all 2^D sets fit in `budget`, every set is asked and the values are the Shapley values themselves.
    Otherwise sets are drawn from the kernel, sizes spread evenly over its mass, and each is asked with its
    complement (Covert and Lee 2021), and what answers owe to the size of a set alone is fitted beside. On an
    image with more features than one for 8 rows, neighbours are joined into cells, one for 12 rows, which
    share their value equally: more unknowns than answers can tell apart are noise.
    """

    budget: Annotated[int, Within(3, MANY)] = 512
    """Rows asked per sample, at most."""
    join: bool = True
    """Whether neighbouring pixels or patches are joined where the budget is too small to tell them apart."""
    name: ClassVar[str] = "kernel_shap"
    version: ClassVar[int] = 4
    summary: ClassVar[str] = "Shapley values by weighted least squares"
    paper: ClassVar[str] = "Lundberg and Lee 2017"
    stochastic: ClassVar[bool] = True

    def answers(self) -> int:
        return self.budget

    def joins(self) -> bool:
        return self.join

    def draws_on(self, task: Task) -> bool:
        most, valid = self._enumerable, task.space.valid
        return task.fill.follows_seed(task) or (
            self.unknowns(task) > most and (valid is None or bool((valid.sum(-1) > most).any()))
        )

    @property
    def _enumerable(self) -> int:
        """The most features whose 2^D sets fit the budget (the set of all is the input itself)."""
        return (self.budget + 1).bit_length() - 1

    def rows_per_sample(self, task: Task) -> int:
        unknowns = self.unknowns(task)
        return self.budget if unknowns > self._enumerable else 2**unknowns

    def masks(self, task: Task) -> Tensor:
        counts = task.space.counts(len(task)).clamp(max=self.unknowns(task))
        drawn = torch.full_like(counts, 2 * ((self.budget - 1) // 2) + 1)
        return torch.where(counts <= self._enumerable, 2**counts - 1, drawn)

    def pieces(self, task: Task) -> Iterator[Task]:
        return mask_pieces(task, self.rows_per_sample(task))

    def fitted(self, task: Task, key: Key) -> Tensor:
        features = task.space.n_features
        if task.space.valid is None:
            return self._values(task, key, features)
        # samples with few features are enumerated and others sampled: one probe for each kind
        counts = task.space.valid.sum(-1)
        kinds = counts.clamp(max=self._enumerable + 1)
        task.outputs  # noqa: B018 (asked once here, so that the parts below share it)
        out = torch.zeros(len(task), features, dtype=task.outputs.dtype, device=task.device)
        for kind in kinds.unique().tolist():
            index = (kinds == kind).nonzero()[:, 0]
            out[index] = self._values(task[index], key, kind)
        return out

    def _values(self, task: Task, key: Key, features: int) -> Tensor:
        """The values of samples that all have `features` features, or all too many to enumerate."""
        given = task.space.valid
        everything = torch.ones(len(task), task.space.n_features, dtype=torch.bool, device=task.device)
        valid = everything if given is None else given
        there = valid.sum(-1, keepdim=True)
        exact = features <= self._enumerable
        if exact:
            pairs, places = 2 ** (features - 1) - 1, torch.where(valid, valid.cumsum(-1) - 1, -1)
            sets: MaskRule = AllSubsets(places, pairs)
        else:
            pairs = (self.budget - 1) // 2
            sizes = _spread_sizes(key / "sizes", task.draw_ids, pairs, there, task.space.n_features)
            sets = SizedSubsets(key / "sets", task.draw_ids, task.space.n_features, sizes, given)
        chosen = written_out(sets, len(task))
        answers = probe(
            task, _Paired(chosen, valid), response="logit", key=self.fill_key(key), with_clean=True
        )
        total = answers[:, :1] - answers[:, 1:2]
        out = (total / there) * valid
        elements = pairs * task.space.n_features
        for some in sample_blocks(len(task), elements, task.device) if pairs else ():
            weights = self._weights(chosen.masks[some], features) if exact else None
            kept = (in_words(chosen.masks[some]) ^ in_words(valid[some])[:, None]).view(torch.bool)
            of_pairs = answers[some, 2:].unflatten(-1, (-1, 2))
            out[some] += _deviations(kept, of_pairs, total[some], valid[some], weights)
            if not exact:
                # sizes run evenly from the smallest to the largest, so that every second set has them all
                half = partial(_half_fit, kept, of_pairs, total[some], valid[some])
                note_halves(self, task, pairs, half, some)
        return out.to(task.outputs.dtype)

    @staticmethod
    def _weights(removed: Tensor, features: int) -> Tensor:
        kernel = [0.0] + [
            (features - 1) / (comb(features, s) * s * (features - s)) for s in range(1, features)
        ]
        return torch.tensor(kernel, dtype=torch.float64, device=removed.device)[removed.sum(-1)]


def _spread_sizes(key: Key, ids: Tensor, pairs: int, there: Tensor, longest: int) -> Tensor:
    """(N, pairs) set sizes with P(s) proportional to 1 / (s (D - s)), even over their cumulative mass."""
    size = torch.arange(1, longest, device=ids.device)
    rest = there - size
    mass = torch.where(rest > 0, 1.0 / (size * rest.clamp(min=1)).double(), 0.0)
    ends = (mass.cumsum(-1) / mass.sum(-1, keepdim=True)).contiguous()
    offset = keyed.uniform(key, ids, 0, 1, torch.float64)
    at = (torch.arange(pairs, device=ids.device) + offset) / pairs
    found = 1 + torch.searchsorted(ends, at.contiguous(), right=True)
    return torch.minimum(found, there - 1)


def _half_fit(kept: Tensor, answers: Tensor, total: Tensor, valid: Tensor, half: int) -> Tensor:
    return _deviations(kept[:, half::2], answers[:, half::2], total, valid, None)


def _deviations(
    kept: Tensor, answers: Tensor, total: Tensor, valid: Tensor, weights: Tensor | None
) -> Tensor:
    """What the values add to equal shares: they sum to 0, so the constraint holds by itself.

    `answers` (N, pairs, 2) are those without each set and without what it leaves. Both carry the same
    equation with opposite signs once rows are measured from their mean over features, so half the difference
    of their answers stands for both. Without weights all weigh 1, and sets that are a sample of all have two
    unknowns more, for what the answer owes to how many features there are: over all sets of one size the
    equations of a feature cancel, so that is no part of any value, but in a sample it is most of the noise.
    """
    there = valid.sum(-1, keepdim=True).double()
    gram = shared_counts(kept) if kept.shape[-1] > kept.shape[-2] else None
    # how many features a set has stands on the diagonal
    size = kept.sum(-1).double() if gram is None else gram.diagonal(dim1=-2, dim2=-1).clone()
    share = size / there
    half = (answers[..., 0] - answers[..., 1]) / 2 - (share - 0.5) * total
    spread = size * (1 - share)
    scale = (spread if weights is None else spread * weights).sum(-1, keepdim=True) / there
    # with fewer sets than features the smallest solution is taken: a vanishing ridge
    ridge = 1e-11 * scale[:, 0]
    if gram is not None:
        gram.sub_(size[..., None] * share[:, None])
        root = None if weights is None else weights.sqrt()
        if root is not None:
            gram.mul_(root[..., None]).mul_(root[:, None])
            half = half * root
        gram.diagonal(dim1=-2, dim2=-1).add_(ridge[:, None])
        dual = solved(gram, half[..., None])[..., 0]
        dual = dual if root is None else dual * root
        return (dual[:, None] @ kept.view(torch.uint8).double())[:, 0] - (dual * share).sum(
            -1, keepdim=True
        ) * valid
    rows = (kept.view(torch.uint8).double() - share[..., None]).mul_(valid[:, None])
    # no row says anything on "all alike"; one more that asks it to be 0 changes nothing else
    rows = torch.cat([rows, valid[:, None] / there[..., None].sqrt()], 1)
    half = torch.cat([half, torch.zeros_like(scale)], 1)
    if weights is None and share.shape[-1] >= kept.shape[-1] + _SPARE:
        size = F.pad(share - 0.5, (0, 1))
        rows = torch.cat([rows, size[..., None], size[..., None] ** 3], -1)
    weights = torch.cat([torch.ones_like(share) if weights is None else weights, scale], 1)
    fitted = least_squares(rows, half, weights, ridge)[..., : kept.shape[-1]]
    return fitted - fitted.sum(-1, keepdim=True) / there * valid
