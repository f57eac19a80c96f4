"""Masks that explainers draw: sets of given sizes, independent coins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.functional.devices import at_a_time
from veridical.perturb.rules import Given, MaskRule
from veridical.values.task import Task

_MASKED_FEATURES = 2**22, 2**28  # truth values that are written out at a time: on a CPU, elsewhere


@dataclass(frozen=True, eq=False)
class SizedSubsets:
    """Mask m removes a uniform random set of `sizes[n, m]` >= 1 features among the valid ones of sample n."""

    key: Key
    ids: Tensor
    n_features: int
    sizes: Tensor
    valid: Tensor | None = None

    @property
    def count(self) -> int:
        return self.sizes.shape[-1]

    def removed(self, samples: slice, masks: slice) -> Tensor:
        draws = torch.arange(masks.start, masks.stop, device=self.ids.device)
        sizes = self.sizes[samples, masks, None]
        valid = None if self.valid is None else self.valid[samples]
        return keyed.subsets(self.key, self.ids[samples], draws, self.n_features, sizes, valid)


@dataclass(frozen=True, eq=False)
class IndependentCoins:
    """Mask m removes each feature with probability 1 - `keep`, whatever happens to the others.

    `keep` is one number, or one per sample and mask (N, M).
    """

    key: Key
    ids: Tensor
    n_features: int
    draws: int
    keep: float | Tensor

    @property
    def count(self) -> int:
        return self.draws

    def removed(self, samples: slice, masks: slice) -> Tensor:
        draws = torch.arange(masks.start, masks.stop, device=self.ids.device)
        gone = 1 - (self.keep if isinstance(self.keep, float) else self.keep[samples, masks].double())
        return keyed.bernoulli(self.key, self.ids[samples], draws, self.n_features, gone)


def written_out(rule: MaskRule, samples: int) -> Given:
    """All masks of a rule as one tensor: for those that are needed again after they were asked about."""
    return Given(rule.removed(slice(0, samples), slice(0, rule.count)))


def in_words(truths: Tensor) -> Tensor:
    """Truth values as integers in the same memory, eight in one where that can be: fewer to be copied."""
    return truths.contiguous().view(torch.int64 if truths.shape[-1] % 8 == 0 else torch.uint8)


def mask_pieces(task: Task, masks: int) -> Iterator[Task]:
    """The task in pieces that fill whole chunks and whose masks fit a fixed memory.

    On a CPU they stay in its cache; a GPU is kept at work by as few pieces as can be, alike in size.
    """
    together = max(1, task.predictor.rows // masks)
    most = at_a_time(task.device, *_MASKED_FEATURES)
    size = together * max(1, most // (together * masks * task.space.n_features))
    if size >= len(task):
        yield task
        return
    size = together * -(-len(task) // (together * -(-len(task) // size)))
    task.outputs  # noqa: B018 (asked once here: each piece would wait for its own)
    yield from (task[at : at + size] for at in range(0, len(task), size))
