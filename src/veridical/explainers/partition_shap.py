"""PartitionSHAP: Owen values over a tree of neighbouring features, many masks in one call of the model.

Features in the order of their tree are one list, and every branch is a range of it. What is there beside a
branch are ranges, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from veridical.core.allowed import MANY, Within
from veridical.explainers.base import register
from veridical.explainers.occlusion import SharesOut, responses_to
from veridical.models.context import Context
from veridical.perturb.rules import Given
from veridical.values.task import Task

TOGETHER = 10
"""Masks of one sample that are evaluated at a time; the next ones follow the outputs."""
_MASKED_FEATURES = 2**27  # of the masks of all samples that are evaluated together: 128 MB


@register
@dataclass(frozen=True)
class PartitionShap(SharesOut):
    """Shapley values handed down a binary tree of features (Owen values; Lundberg's PartitionExplainer).

    The tree halves the features along the longer side of the region they fill: rows and columns of an
    image, places in a text, a series or a table. Where most of the output changes hands is halved first. A
    branch that `budget` does not reach shares its value equally.
    """

    budget: Annotated[int, Within(4, MANY)] = 512
    """Rows evaluated per sample, at most; one of them is without features, and one the sample itself."""
    name: ClassVar[str] = "partition_shap"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "Owen values over a tree of neighbours"
    paper: ClassVar[str] = "Owen 1977; Lundberg and Lee 2017"

    def _pieces(self, task: Task) -> Iterator[Task]:
        # not as many as fill a chunk: what is left over of each sample's masks shares chunks with the others'
        size = max(1, _MASKED_FEATURES // (TOGETHER * task.space.n_features))
        return iter([task]) if size >= len(task) else (task[i : i + size] for i in range(0, len(task), size))

    def masks(self, task: Task) -> Tensor:
        most = 2 * ((self.budget - 1) // 2)
        counts = task.space.counts(len(task)).tolist()
        return torch.tensor([1 + min(most, rows_of_tree(count)) for count in counts])

    def attribute(self, task: Task, context: Context) -> Tensor:
        key, features = self.fill_key(context.key), task.space.n_features

        def evaluate(part: Task, removed: Tensor) -> Tensor:
            return responses_to(part, Given(removed.to(task.device)), key, context, clean=False)

        low = evaluate(task, torch.ones(1, features, dtype=torch.bool))[:, 0]
        high = task.clean_response("logit")[:, 0].to(low)
        samples = zip(orders_of(task), low.tolist(), high.tolist(), strict=True)
        trees = [_Tree(order, without, whole, self.budget - 2) for order, without, whole in samples]
        while any([tree.choose() for tree in trees]):  # noqa: C419 (all of them choose)
            for count in sorted({len(tree.chosen) for tree in trees} - {0}):
                index = [i for i, tree in enumerate(trees) if len(tree.chosen) == count]
                removed = torch.as_tensor(np.stack([trees[i].masks(features) for i in index]))
                part = task if len(index) == len(task) else task[torch.tensor(index, device=task.device)]
                for i, row in zip(index, evaluate(part, removed).tolist(), strict=True):
                    trees[i].halve(row)
        values = np.stack([tree.values(features) for tree in trees])
        return torch.as_tensor(values).to(task.device, task.outputs.dtype)


@lru_cache(maxsize=4096)
def rows_of_tree(features: int) -> int:
    """Masks that halve everything down to single features: each half is evaluated in two contexts."""
    if features < 2:
        return 0
    return 2 + 2 * (rows_of_tree(features // 2) + rows_of_tree(features - features // 2))


# --- the tree ---------------------------------------------------------------------------------------------


class Order:
    """Features in the order of their tree, sorted as far as branches have been halved.

    A branch is halved along the axis on which its places lie farthest apart, and features that are level
    there stay in the order they had.
    """

    def __init__(self, places: Any, features: Any) -> None:
        self.places, self.features = places, features
        self._halved: set[tuple[int, int]] = set()

    def halve(self, start: int, stop: int) -> int:
        """Where the second half of a branch begins."""
        if (start, stop) not in self._halved:
            own = self.features[start:stop]
            at = self.places[own]
            axis = np.ptp(at, axis=0).argmax()
            self.features[start:stop] = own[at[:, axis].argsort(kind="stable")]
            self._halved.add((start, stop))
        return start + (stop - start) // 2


def orders_of(task: Task) -> list[Order]:
    """The order of each sample; the same one where all samples have one tree."""
    places = _places(task).cpu().numpy()
    valid = task.space.valid
    there = np.ones(places.shape[:2], dtype=bool) if valid is None else valid.cpu().numpy()
    orders = [Order(own, where.nonzero()[0]) for own, where in zip(places, there, strict=True)]
    return orders * (len(task) // len(orders))


def _places(task: Task) -> Tensor:
    """(n or 1, V, axes): where each feature lies; the middle of its pixels in an image, else its number."""
    space = task.space
    alone = space.per_sample or space.valid is not None
    count = len(task) if alone else 1
    if task.modality == "image":
        sides = [torch.arange(n, dtype=torch.float64, device=task.device) for n in space.input_shape[1:]]
        maps = [m.expand(count, *space.input_shape) for m in torch.meshgrid(*sides, indexing="ij")]
        return torch.stack([space.pool(m, "mean") for m in maps], -1)
    numbers = torch.arange(space.n_features, dtype=torch.float64, device=task.device)
    return numbers[None, :, None].expand(count, -1, 1)


class Branch(NamedTuple):
    """Some neighbouring features of a sample, from `start` to `stop` in their order."""

    start: int
    stop: int
    there: tuple[tuple[int, int], ...]
    """The branches that are there beside it."""
    low: float
    """The output without the branch."""
    high: float
    """The output with it."""
    weight: float

    @property
    def worth(self) -> float:
        """How much of the output changes hands."""
        return abs(self.high - self.low) * self.weight


class _Tree:
    """The branches of one sample: those that move the output most are halved first, of equals the first."""

    def __init__(self, order: Order, low: float, high: float, budget: int) -> None:
        self.order, self.branches, self.chosen = order, dict[int, Branch](), list[Branch]()
        self._waiting: list[tuple[float, int]] = []
        self._left, self._number = budget, 0
        self._add(Branch(0, len(order.features), (), low, high, 1.0))

    def _add(self, branch: Branch) -> None:
        self.branches[self._number] = branch
        if branch.stop - branch.start > 1 and branch.worth >= 0:
            heappush(self._waiting, (-branch.worth, self._number))
        self._number += 1

    def choose(self) -> bool:
        """Choose the branches to halve next; whether there are any."""
        count = min(max(0, -(-min(TOGETHER, self._left) // 2)), len(self._waiting))
        self._left -= 2 * count
        self.chosen = [self.branches.pop(heappop(self._waiting)[1]) for _ in range(count)]
        return bool(count)

    def masks(self, features: int) -> Any:
        """(2 chosen, V): what is removed to leave each chosen branch its first half, then its second."""
        removed = np.zeros((2 * len(self.chosen), features), dtype=bool)
        removed[:, self.order.features] = True
        for at, branch in enumerate(self.chosen):
            for row, half in enumerate(self._halves(branch), start=2 * at):
                for start, stop in (half, *branch.there):
                    removed[row, self.order.features[start:stop]] = False
        return removed

    def _halves(self, branch: Branch) -> tuple[tuple[int, int], tuple[int, int]]:
        middle = self.order.halve(branch.start, branch.stop)
        return (branch.start, middle), (middle, branch.stop)

    def halve(self, outputs: list[float]) -> None:
        """Put halves in the place of the chosen branches, each without and with the other one."""
        for branch, first, second in zip(self.chosen, outputs[::2], outputs[1::2], strict=True):
            there, low, high, half = branch.there, branch.low, branch.high, branch.weight / 2
            one, other = self._halves(branch)
            self._add(Branch(*one, there, low, first, half))
            self._add(Branch(*other, there, low, second, half))
            self._add(Branch(*one, (*there, other), second, high, half))
            self._add(Branch(*other, (*there, one), first, high, half))

    def values(self, features: int) -> Any:
        """(V,): what each feature gets, equal shares of all branches that were not halved."""
        given: dict[tuple[int, int], float] = defaultdict(float)
        for start, stop, _, low, high, weight in self.branches.values():
            given[start, stop] += (high - low) * weight / max(stop - start, 1)
        out = np.zeros(features)
        for start, stop in sorted(given, key=lambda each: each[0] - each[1]):  # the largest first
            out[self.order.features[start:stop]] += given[start, stop]
        return out
