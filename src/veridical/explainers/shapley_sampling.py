"""Shapley values from random orders: features leave one after the other, and each is paid what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.explainers.base import FILL_KEY, Explainer, register
from veridical.explainers.laws import change_from_nothing
from veridical.explainers.mask_rules import mask_pieces
from veridical.explainers.repeatability import note_halves
from veridical.perturb.probe import probe
from veridical.values.task import Task


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
class ShapleySampling(Explainer):
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
    law: ClassVar[str] = "values sum to y(x) - y(everything removed)"
    stochastic: ClassVar[bool] = True

    def promised(self, task: Task, key: Key) -> Tensor:
        return change_from_nothing(task, FILL_KEY)

    def rows_per_sample(self, task: Task) -> int:
        return (self.orders * (task.space.n_features - 1) + 1) * task.fill.repeats_on(task)

    def pieces(self, task: Task) -> Iterator[Task]:
        return mask_pieces(task, self.rows_per_sample(task))

    def attribute(self, task: Task, key: Key) -> Tensor:
        ranks = self._ranks(task, key)
        answers = probe(task, Leaving(ranks), response="logit", key=FILL_KEY, with_clean=True)
        clean, steps, empty = answers[:, :1], answers[:, 1:-1], answers[:, -1:]
        steps = steps.unflatten(1, (self.orders, ranks.shape[-1] - 1))
        ends = [end[:, None].expand(-1, self.orders, -1) for end in (clean, empty)]
        curve = torch.cat([ends[0], steps, ends[1]], -1)
        lost = (curve[..., :-1] - curve[..., 1:]).gather(-1, ranks)
        note_halves(self, task, self.orders, partial(_half_mean, lost))
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
