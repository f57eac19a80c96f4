"""Mask rules: which features each mask of a sample removes, written out for a block of masks at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.perturb.masked_task import MaskedTask


class MaskRule(Protocol):
    """Says which features each mask removes, a block at a time."""

    @property
    def count(self) -> int:
        """Masks per sample."""

    def removed(self, samples: slice, masks: slice) -> Tensor:
        """(samples, masks, V) bool: True where a feature is removed."""


@dataclass(frozen=True, eq=False)
class RowsOf:
    """The masks of some samples of a rule, by their numbers in ascending order."""

    rule: MaskRule
    rows: Tensor

    @property
    def count(self) -> int:
        return self.rule.count

    def removed(self, samples: slice, masks: slice) -> Tensor:
        rows = self.rows[samples]
        first = int(rows[0])
        removed = self.rule.removed(slice(first, int(rows[-1]) + 1), masks)
        return removed if len(removed) == 1 else removed[rows - first]


@dataclass(frozen=True, eq=False)
class Given:
    """Masks written out: (N, M, V) or (M, V) for all samples, True where removed."""

    masks: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "masks", self.masks.to(torch.bool))

    @property
    def count(self) -> int:
        return self.masks.shape[-2]

    def removed(self, samples: slice, masks: slice) -> Tensor:
        if self.masks.dim() == 2:
            return self.masks[None, masks]
        return self.masks[samples, masks]


@dataclass(frozen=True, eq=False)
class RankThreshold:
    """Mask m removes the features of rank below `counts[m]`: nested sets, as on a flipping curve.

    `ranks` (N, V) is 0 for the feature removed first; `counts` is (M,) or, where samples differ in size,
    (N, M).
    """

    ranks: Tensor
    counts: Tensor
    count: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", self.counts.shape[-1])
        # 16 bits move a quarter of the memory of 64, and memory is what building a mask costs
        small = torch.int16 if self.ranks.shape[-1] < 2**15 else torch.int32
        object.__setattr__(self, "ranks", self.ranks.to(small))
        object.__setattr__(self, "counts", self.counts.to(device=self.ranks.device, dtype=small))

    def removed(self, samples: slice, masks: slice) -> Tensor:
        counts = self.counts[None, masks] if self.counts.dim() == 1 else self.counts[samples, masks]
        return self.ranks[samples, None, :] < counts[..., None]


def step_counts(task: MaskedTask, steps: int | None, per_step: int | None = None) -> Tensor:
    """How many features are gone after each step of a curve that ends with none left: (M,) or (N, M).

    Either `per_step` features at a time, or `steps` even steps and never more than there are features; by
    default one feature per step.
    """
    if task.space.valid is None:
        return _even_counts(task.space.n_features, steps, per_step, task.inputs.device)
    counts = task.space.counts(len(task))[:, None]
    longest = int(counts.max())
    steps = -(-longest // (per_step or 1)) if steps is None else min(steps, longest)
    step = torch.arange(1, steps + 1, device=counts.device)
    gone = step * per_step if per_step else torch.div(step * counts, steps, rounding_mode="floor")
    return torch.minimum(gone.expand(len(task), -1), counts)


@lru_cache(maxsize=64)
def _even_counts(features: int, steps: int | None, per_step: int | None, device: torch.device) -> Tensor:
    """Those of samples that all have as many features: made once and never written to."""
    steps = -(-features // (per_step or 1)) if steps is None else min(steps, features)
    gone = [min(k * per_step if per_step else k * features // steps, features) for k in range(1, steps + 1)]
    with torch.inference_mode(False):
        return torch.tensor(gone, device=device)


def removed_share(task: MaskedTask, counts: Tensor) -> Tensor:
    """The share of its features a sample has lost after 0 and after each of `counts` (N, M + 1)."""
    if task.space.valid is None and counts.dim() == 1:
        share = counts / torch.full((), task.space.n_features, dtype=torch.float64, device=counts.device)
        return torch.cat([share.new_zeros(1), share]).expand(len(task.inputs), -1)
    gone = counts.expand(len(task), -1) / task.space.counts(len(task))[:, None].clamp(min=1).double()
    return torch.cat([torch.zeros_like(gone[:, :1]), gone], -1)


def put_back(task: MaskedTask, kept: Tensor) -> Tensor:
    """How many features are gone before each step that puts some back, where `kept` are there after it."""
    total = task.space.counts(len(task))
    whole = total[:1] if kept.dim() == 1 else total[:, None]
    return whole - torch.cat([torch.zeros_like(kept[..., :1]), kept[..., :-1]], -1)


def check_steps(steps: int | None, per_step: int | None) -> None:
    """Refuse step settings that contradict each other."""
    if per_step is not None and steps is not None:
        raise InputError("give per_step or steps, not both")


@dataclass(frozen=True, eq=False)
class Groups:
    """Mask m removes the features m * size, ..., (m + 1) * size - 1 and no others."""

    n_features: int
    device: torch.device
    size: int = 1

    @property
    def count(self) -> int:
        return -(-self.n_features // self.size)

    def removed(self, samples: slice, masks: slice) -> Tensor:
        group = torch.arange(masks.start, masks.stop, device=self.device)
        member = torch.arange(self.n_features, device=self.device) // self.size
        return (member == group[:, None])[None]

    def pool(self, truth: Tensor) -> Tensor:
        """Whether it holds for any feature of a group (N, count)."""
        spare = self.count * self.size - self.n_features
        padded = torch.nn.functional.pad(truth, (0, spare))
        return padded.reshape(len(truth), self.count, self.size).any(-1)


@dataclass(frozen=True, eq=False)
class AllSubsets:
    """Mask m removes the features whose bits are set in m + 1, counting the valid ones from 0."""

    places: Tensor
    """(N, V): the number of each valid feature among its sample's, -1 for invalid ones."""
    count: int

    def removed(self, samples: slice, masks: slice) -> Tensor:
        places = self.places[samples, None]
        numbers = torch.arange(masks.start + 1, masks.stop + 1, device=places.device)[:, None]
        return ((numbers >> places.clamp(min=0)) & 1).bool() & (places >= 0)


@dataclass(frozen=True, eq=False)
class RandomSubsets:
    """Mask (draw d, size s) removes the `sizes[s]` features with the smallest keyed numbers of draw d.

    Masks run over sizes fastest. One draw per sample serves all sizes, so its sets are nested. `sizes` is one
    number, (S,) or, where samples differ, (N, S); `among` limits the draw to some features of each sample.
    """

    key: Key
    ids: Tensor
    n_features: int
    draws: int
    sizes: Tensor | int
    among: Tensor | None = None
    _only: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # one size for all is the common case, and needs no order among the features it takes
        only = self.sizes if isinstance(self.sizes, int) else _only_one(self.sizes)
        object.__setattr__(self, "_only", only)

    @property
    def _width(self) -> int:
        return 1 if isinstance(self.sizes, int) else self.sizes.shape[-1]

    @property
    def count(self) -> int:
        return self.draws * self._width

    def removed(self, samples: slice, masks: slice) -> Tensor:
        width = self._width
        first, last = masks.start // width, -(-masks.stop // width)
        counts = self._only if self._only is not None else self.sizes
        if isinstance(counts, Tensor) and counts.dim() == 2:
            counts = counts[samples]
        among = None if self.among is None else self.among[samples]
        draws = torch.arange(first, last, device=self.ids.device)
        chosen = keyed.subsets(self.key, self.ids[samples], draws, self.n_features, counts, among)
        if width == 1:
            return chosen
        return chosen[:, masks.start - first * width : masks.stop - first * width]


def _only_one(sizes: Tensor) -> int | None:
    """The size that all subsets have, if it is one."""
    alike = sizes.shape[-1] == 1 and (sizes.numel() == 1 or len(sizes.unique()) == 1)
    return int(sizes.flatten()[0]) if alike else None
