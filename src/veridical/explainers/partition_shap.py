"""PartitionSHAP: Owen values over a tree of neighbouring features, many masks in one call of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from veridical.allowed import MANY, Within
from veridical.explainers.base import register
from veridical.explainers.coalitions import SharesOut
from veridical.masking.probe import probe
from veridical.masking.rules import Given
from veridical.random.keyed import Key
from veridical.values.task import Task

Array = np.ndarray[Any, Any]
TOGETHER = 10
"""Masks that one sample is asked about at a time; the next ones follow the answers."""


@register
@dataclass(frozen=True)
class PartitionShap(SharesOut):
    """Shapley values handed down a binary tree of features (Owen values; Lundberg's PartitionExplainer).

    The tree halves the features along the longer side of the region they fill: rows and columns of an
    image, places in a text, a series or a table. Where most of the output changes hands is halved first. A
    branch that `budget` does not reach shares its value equally.
    """

    budget: Annotated[int, Within(4, MANY)] = 512
    """Rows asked per sample, at most; one of them is without features, and one the sample itself."""
    name: ClassVar[str] = "partition_shap"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "Owen values over a tree of neighbours"
    paper: ClassVar[str] = "Owen 1977; Lundberg and Lee 2017"

    def pieces(self, task: Task) -> Iterator[Task]:
        return task.chunks(TOGETHER)

    def masks(self, task: Task) -> Tensor:
        most = 2 * ((self.budget - 1) // 2)
        counts = task.space.counts(len(task)).tolist()
        return torch.tensor([1 + min(most, rows_of_tree(count)) for count in counts])

    def attribute(self, task: Task, key: Key) -> Tensor:
        everything = torch.ones(1, task.space.n_features, dtype=torch.bool, device=task.device)
        low = self._asked(task, Given(everything), key)[:, 0].tolist()
        high = task.clean_response("logit")[:, 0].tolist()
        orders = _orders(task)
        games = [_Game(*given, self.budget - 2) for given in zip(orders, low, high, strict=True)]
        while any(asked := [game.questions() for game in games]):
            for count in sorted({len(masks) for masks in asked} - {0}):
                index = [i for i, masks in enumerate(asked) if len(masks) == count]
                kept = torch.zeros(len(index), count, task.space.n_features, dtype=torch.bool)
                for row, i in zip(kept, index, strict=True):
                    row[:, orders[i]] = torch.from_numpy(np.stack(asked[i]))
                part = task if len(index) == len(task) else task[torch.tensor(index, device=task.device)]
                answers = self._asked(part, Given(~kept.to(task.device)), key).tolist()
                for i, found in zip(index, answers, strict=True):
                    games[i].answer(found)
        out = torch.zeros(len(task), task.space.n_features, dtype=torch.float64)
        for row, order, game in zip(out, orders, games, strict=True):
            row[order] = torch.from_numpy(game.credit)
        return out.to(task.device, task.outputs.dtype)

    def _asked(self, task: Task, rule: Given, key: Key) -> Tensor:
        return probe(task, rule, response="logit", key=self.fill_key(key))


class _Game:
    """One sample: nodes of the tree that wait to be halved, those that move the output most first.

    A node is a stretch of the features in the order of the tree, together with other features that are
    there (its context), the outputs without and with it, and its weight.
    """

    def __init__(self, order: Array, low: float, high: float, budget: int) -> None:
        self.credit = np.zeros(len(order))
        self._left, self._count = budget, 0
        self._waiting: list[Any] = []
        self._open: list[Any] = []
        self._wait(np.zeros(len(order), dtype=bool), low, high, 0, len(order), 1.0)

    def _wait(self, context: Array, low: float, high: float, start: int, stop: int, weight: float) -> None:
        self._count += 1  # of equals the first comes first
        node = (context, low, high, start, stop, weight)
        heappush(self._waiting, (-abs(high - low) * weight, self._count, node))

    def _share(self, low: float, high: float, start: int, stop: int, weight: float) -> None:
        self.credit[start:stop] += (high - low) * weight / (stop - start)

    def questions(self) -> list[Array]:
        """The features that are there in each mask to ask about next; none when all is shared out."""
        self._open = []
        while self._waiting and 2 * len(self._open) < min(TOGETHER, self._left):
            node = heappop(self._waiting)[2]
            if node[4] - node[3] == 1:
                self._share(*node[1:])
            else:
                self._open.append(node)
        if self._left <= 0:
            while self._waiting:
                self._share(*heappop(self._waiting)[2][1:])
        return [mask for node in self._open for mask in _halves(node)]

    def answer(self, found: list[float]) -> None:
        """Hand what was found to the halves, each without and with the other one."""
        self._left -= len(found)
        for at, node in enumerate(self._open):
            context, low, high, start, stop, weight = node
            middle, (with_left, with_right) = (start + stop) // 2, _halves(node)
            left, right = found[2 * at : 2 * at + 2]
            self._wait(context, low, left, start, middle, weight / 2)
            self._wait(context, low, right, middle, stop, weight / 2)
            self._wait(with_right, right, high, start, middle, weight / 2)
            self._wait(with_left, left, high, middle, stop, weight / 2)


def _halves(node: Any) -> tuple[Array, Array]:
    context, start, stop = node[0], node[3], node[4]
    left, right, middle = context.copy(), context.copy(), (start + stop) // 2
    left[start:middle] = True
    right[middle:stop] = True
    return left, right


@lru_cache(maxsize=4096)
def rows_of_tree(features: int) -> int:
    """Masks that halve everything down to single features: each half is asked in two contexts."""
    if features < 2:
        return 0
    return 2 + 2 * (rows_of_tree(features // 2) + rows_of_tree(features - features // 2))


def halving_order(places: Array) -> Array:
    """The features at these places (D, axes), so that what is halved together lies together."""
    out: list[int] = []

    def halve(members: Array) -> None:
        if len(members) == 1:
            out.append(int(members[0]))
            return
        spans = np.ptp(places[members], axis=0)
        ordered = members[np.argsort(places[members, spans.argmax()], kind="stable")]
        halve(ordered[: len(ordered) // 2])
        halve(ordered[len(ordered) // 2 :])

    if len(places):
        halve(np.arange(len(places)))
    return np.array(out, dtype=np.int64)


def _orders(task: Task) -> list[Array]:
    """The features that each sample has, in the order of its tree."""
    places, valid, known = _places(task), task.space.valid, {}
    out = []
    for i in range(len(task)):
        there = np.arange(places.shape[1]) if valid is None else valid[i].cpu().numpy().nonzero()[0]
        where = places[i, there]
        name = where.tobytes()
        if name not in known:
            known[name] = halving_order(where)
        out.append(there[known[name]])
    return out


def _places(task: Task) -> Array:
    """(N, V, axes): where each feature lies; the middle of its pixels in an image, else its number."""
    space = task.space
    if task.modality == "image":
        sides = [torch.arange(n, dtype=torch.float64, device=task.device) for n in space.input_shape[1:]]
        maps = [m.expand(len(task), *space.input_shape) for m in torch.meshgrid(*sides, indexing="ij")]
        return torch.stack([space.pool(m, "mean") for m in maps], -1).cpu().numpy()
    numbers = np.arange(space.n_features, dtype=np.float64)[None, :, None]
    return np.broadcast_to(numbers, (len(task), space.n_features, 1))
