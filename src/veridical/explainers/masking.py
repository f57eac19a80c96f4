"""What explainers that mask features share: their bases, the masks they draw, and joined cells."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import VeridicalWarning
from veridical.explainers.base import Explainer
from veridical.explainers.grid import Cells, few_cells
from veridical.explainers.laws import change_from_nothing
from veridical.functional.devices import at_a_time
from veridical.models.context import Context
from veridical.models.cost import Cost
from veridical.perturb.rules import Given, MaskRule
from veridical.values.task import Task

# --- masks ------------------------------------------------------------------------------------------------


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


# --- bases ------------------------------------------------------------------------------------------------


ROWS_PER_FEATURE = 8
"""Answers for each feature with which all stay as they are."""
ROWS_PER_CELL = 12
"""Answers for each cell where features are joined: with so many two seeds agree on photos, too."""
FEWEST_CELLS = 9
"""Into fewer than 3 x 3 nothing is joined, however few the answers: that would be no map."""


def most_cells(answers: int) -> int:
    """How many cells so many answers can tell apart."""
    return max(FEWEST_CELLS, answers // ROWS_PER_CELL)


@dataclass(frozen=True)
class MaskingExplainer(Explainer):
    """Base of methods that ask about masked inputs and draw nothing but, perhaps, rows for their fill."""

    def _draws_on(self, task: Task) -> bool:
        return self.stochastic or task.fill.follows_seed(task)

    def masks(self, task: Task) -> int | Tensor:
        """Masks that every sample is asked about, or each one (n,), where no mask is asked twice."""
        return self.rows_per_sample(task)

    def _declared(self, task: Task) -> Cost:
        masks = self.masks(task)
        total = int(masks.sum()) if isinstance(masks, Tensor) else masks * len(task)
        return Cost(total * task.fill.repeats_on(task))

    @staticmethod
    def fill_key(key: Key) -> Key:
        """What the fill draws by: the seed alone, so that one seed gives one map in every world."""
        return Key(key.seed) / "fill of explainers"


@dataclass(frozen=True)
class SharesOut(MaskingExplainer):
    """Base of methods that share out what all features together do to the output."""

    law: ClassVar[str] = "values sum to y(x) less y without features"

    def _promised(self, task: Task, key: Key) -> Tensor:
        return change_from_nothing(task, self.fill_key(key))


@dataclass(frozen=True)
class FitsCells(Explainer):
    """Base of methods that fit one unknown per feature: of an image, those that its rows can tell apart."""

    def answers(self) -> int:
        """How many answers the fit has for each sample."""
        raise NotImplementedError

    def joins(self) -> bool:
        """Whether neighbours may be joined."""
        raise NotImplementedError

    def fitted(self, task: Task, context: Context) -> Tensor:
        """The unknowns (n, V) of a task whose features are the cells."""
        raise NotImplementedError

    def cells_of(self, task: Task) -> Cells | None:
        """The cells that features are joined into, or None where they stay as they are."""
        few = task.space.n_features <= self.answers() // ROWS_PER_FEATURE
        if few or not self.joins():
            return None
        return few_cells(task.space, most_cells(self.answers()))

    def unknowns(self, task: Task) -> int:
        """How many features, or cells, are fitted."""
        joined = self.cells_of(task)
        return task.space.n_features if joined is None else joined.count

    def _stated(self, task: Task) -> dict[str, Any]:
        joined, features = self.cells_of(task), task.space.n_features
        if joined is not None:
            return {"cells": joined.in_words()}
        few = f"{self.answers()} answers for {features} features: one fit of many"
        return {"underdetermined": few} if features > self.answers() else {}

    def check(self, task: Task) -> None:
        super().check(task)
        if "underdetermined" in self._stated(task):
            warnings.warn(
                f"'{self.name}' has {self._stated(task)['underdetermined']}; ask more rows, or give the task "
                "fewer features (patches, superpixels)",
                VeridicalWarning,
                stacklevel=4,
            )

    def attribute(self, task: Task, context: Context) -> Tensor:
        joined = self.cells_of(task)
        if joined is None:
            return self.fitted(task, context)
        return joined.shared_out(self.fitted(joined.over(task), context))
