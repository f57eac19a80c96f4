"""Mask rules and least squares shared by the explainers that fit a model of "which features are there"."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from veridical.core.key import Key
from veridical.errors import VeridicalWarning
from veridical.explainers.base import Explainer
from veridical.explainers.cells import Cells, few_cells
from veridical.explainers.laws import change_from_nothing
from veridical.models.cost import Cost
from veridical.values.task import Task

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

    def draws_on(self, task: Task) -> bool:
        return self.stochastic or task.fill.follows_seed(task)

    def masks(self, task: Task) -> int | Tensor:
        """Masks that every sample is asked about, or each one (n,), where no mask is asked twice."""
        return self.rows_per_sample(task)

    def declared(self, task: Task) -> Cost:
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

    def promised(self, task: Task, key: Key) -> Tensor:
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

    def fitted(self, task: Task, key: Key) -> Tensor:
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

    def stated(self, task: Task) -> dict[str, Any]:
        joined, features = self.cells_of(task), task.space.n_features
        if joined is not None:
            return {"cells": joined.in_words()}
        few = f"{self.answers()} answers for {features} features: one fit of many"
        return {"underdetermined": few} if features > self.answers() else {}

    def check(self, task: Task) -> None:
        super().check(task)
        if "underdetermined" in self.stated(task):
            warnings.warn(
                f"'{self.name}' has {self.stated(task)['underdetermined']}; ask more rows, or give the task "
                "fewer features (patches, superpixels)",
                VeridicalWarning,
                stacklevel=4,
            )

    def attribute(self, task: Task, key: Key) -> Tensor:
        joined = self.cells_of(task)
        if joined is None:
            return self.fitted(task, key)
        return joined.shared_out(self.fitted(joined.over(task), key))
