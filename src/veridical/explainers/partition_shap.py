"""PartitionSHAP: Owen values over a tree of neighbouring features, many masks in one call of the model.

A binary tree of neighbouring features is one number a feature: bit d is the half it is in at depth d. The
features of a branch at depth d are those that share its first d bits. What is there beside a branch is as
short: one bit for each half that its path left aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import Annotated, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from veridical.core.allowed import MANY, Within
from veridical.core.space import Space
from veridical.explainers.base import register
from veridical.explainers.occlusion import SharesOut
from veridical.models.context import Context
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given, MaskRule
from veridical.values.task import Task

TOGETHER = 10
"""Masks of one sample that are evaluated at a time; the next ones follow the outputs."""
_NUMBERS_KEPT = 2**25  # of the trees of all samples that are explained together: 256 MB


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

    def _pieces(self, task: Task) -> Iterator[Task]:
        # not as many as fill a chunk: what is left over of each sample's masks shares chunks with the others'
        size = max(1, _NUMBERS_KEPT // (2 << depth_of(task.space.n_features)))
        return iter([task]) if size >= len(task) else (task[i : i + size] for i in range(0, len(task), size))

    def masks(self, task: Task) -> Tensor:
        most = 2 * ((self.budget - 1) // 2)
        return torch.tensor([1 + min(most, rows_of_tree(count)) for count in _sizes(task)])

    def attribute(self, task: Task, context: Context) -> Tensor:
        everything = torch.ones(1, task.space.n_features, dtype=torch.bool, device=task.device)
        low = self._evaluate(task, Given(everything), context)[:, 0]
        features, high = paths_of(task), task.clean_response("logit")[:, 0].to(low)
        samples = zip(_sizes(task), low.tolist(), high.tolist(), strict=True)
        trees = [
            _Tree(Branch(0, 0, 0, size, without, whole, 1.0), self.budget - 2)
            for size, without, whole in samples
        ]
        while any([tree.choose() for tree in trees]):  # noqa: C419 (all of them choose)
            for count in sorted({len(tree.chosen) for tree in trees} - {0}):
                index = [i for i, tree in enumerate(trees) if len(tree.chosen) == count]
                masks = torch.tensor([trees[i].masks() for i in index], device=task.device).to(features.dtype)
                part, own = task, features
                if len(index) < len(task):
                    part = task[torch.tensor(index, device=task.device)]
                    own = features if len(features) == 1 else features[index]
                rule = Beside(own, masks[:, 0], masks[:, 1])
                outputs = self._evaluate(part, rule, context)
                for i, row in zip(index, outputs.tolist(), strict=True):
                    trees[i].halve(row)
        return _shares(trees, features, low).to(task.outputs.dtype)

    def _evaluate(self, task: Task, rule: MaskRule, context: Context) -> Tensor:
        return probe(task, rule, response="logit", key=self.fill_key(context.key), memo=context.memo)


def _sizes(task: Task) -> list[int]:
    """How many features each sample has."""
    counts: list[int] = task.space.counts(len(task)).tolist()
    return counts


class Branch(NamedTuple):
    """Some neighbouring features of a sample, and what is there beside them."""

    depth: int
    path: int
    there: int
    """Bit d is set if the half that the path left aside at depth d is there."""
    size: int
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

    def __init__(self, root: Branch, budget: int) -> None:
        self.branches: dict[int, Branch] = {}
        self._waiting: list[tuple[float, int]] = []
        self._left, self._number = budget, 0
        self._add(root)

    def _add(self, branch: Branch) -> None:
        self.branches[self._number] = branch
        if branch.size > 1 and branch.worth >= 0:
            heappush(self._waiting, (-branch.worth, self._number))
        self._number += 1

    def choose(self) -> bool:
        """Choose the branches to halve next; whether there are any."""
        count = min(max(0, -(-min(TOGETHER, self._left) // 2)), len(self._waiting))
        self._left -= 2 * count
        self.chosen = [self.branches.pop(heappop(self._waiting)[1]) for _ in range(count)]
        return bool(count)

    def masks(self) -> tuple[list[int], list[int]]:
        """Paths and what is there, for each chosen branch with its first, then with its second half."""
        paths = [path for each in self.chosen for path in (each.path | 1 << each.depth, each.path)]
        return paths, [each.there | 1 << each.depth for each in self.chosen for _ in range(2)]

    def halve(self, outputs: list[float]) -> None:
        """Put halves in the place of the chosen branches, each without and with the other one."""
        for branch, first, second in zip(self.chosen, outputs[::2], outputs[1::2], strict=True):
            depth, path, there, size, low, high, weight = branch
            other, both, half = path | 1 << depth, there | 1 << depth, size // 2
            self._add(Branch(depth + 1, path, there, half, low, first, weight / 2))
            self._add(Branch(depth + 1, other, there, size - half, low, second, weight / 2))
            self._add(Branch(depth + 1, path, both, half, second, high, weight / 2))
            self._add(Branch(depth + 1, other, both, size - half, first, high, weight / 2))


def _shares(trees: list[_Tree], features: Tensor, like: Tensor) -> Tensor:
    """What each feature gets: equal shares of all branches that were not halved."""
    most = max(len(tree.branches) for tree in trees)
    none = Branch(0, 0, 0, 1, 0.0, 0.0, 0.0)
    rows = [[*tree.branches.values(), *[none] * (most - len(tree.branches))] for tree in trees]
    amounts = [[(b.high - b.low) * b.weight / max(b.size, 1) for b in row] for row in rows]
    places = torch.tensor([[(b.depth, b.path) for b in row] for row in rows], device=like.device)
    given = torch.tensor(amounts, dtype=torch.float64).to(like)
    return handed_down(given, places[..., 0], places[..., 1], features)


# --- the tree ---------------------------------------------------------------------------------------------


# made once for a space: sorting its features takes longer than a map of few rows
_known: WeakKeyDictionary[Space, dict[str, Tensor]] = WeakKeyDictionary()


@lru_cache(maxsize=4096)
def rows_of_tree(features: int) -> int:
    """Masks that halve everything down to single features: each half is asked in two contexts."""
    if features < 2:
        return 0
    return 2 + 2 * (rows_of_tree(features // 2) + rows_of_tree(features - features // 2))


def depth_of(features: int) -> int:
    """How often the deepest feature is halved off."""
    return max(0, features - 1).bit_length()


def paths_of(task: Task) -> Tensor:
    """(n, V), or (1, V) where all samples have one tree: the path of each feature, in few bits."""
    known = _known.setdefault(task.space, {})
    if task.modality not in known:
        deep = depth_of(task.space.n_features)
        small = torch.int16 if deep <= 16 else torch.int32  # the sign is a bit like others
        known[task.modality] = halving_paths(_places(task), task.space.valid).to(small)
    return known[task.modality]


def halving_paths(places: Tensor, valid: Tensor | None = None) -> Tensor:
    """The paths (n, V) of features at these places (n, V, axes), all branches of one depth at a time.

    A branch is halved along the axis on which its places lie farthest apart, and features that are level
    there stay in the order they had.
    """
    samples, features, _ = places.shape
    places, device = places.flatten(0, 1), places.device
    of = torch.arange(samples, device=device).repeat_interleave(features)
    if valid is not None:
        of = of.masked_fill(~valid.flatten(), samples)  # a tree of its own for what nobody has
        samples += 1
    rank = _ranks(places)
    branch, at = of.sort(stable=True)
    number = torch.arange(len(at), device=device)
    path = torch.zeros_like(at)
    for depth in range(depth_of(features)):
        size = torch.zeros(samples << depth, dtype=torch.int64, device=device)
        size.scatter_add_(0, branch, torch.ones_like(branch))
        each = branch[:, None].expand(-1, places.shape[-1])
        ends = [
            places.new_full((len(size), places.shape[-1]), sign * torch.inf).scatter_reduce_(
                0, each, places[at], way
            )
            for sign, way in ((-1, "amax"), (1, "amin"))
        ]
        axis = (ends[0] - ends[1]).argmax(-1)
        level = rank[at].gather(-1, axis[branch, None])[:, 0]
        at = at[(branch * len(at) + level).argsort(stable=True)]
        own = size[branch]
        second = (number - (size.cumsum(0) - size)[branch] >= own // 2) & (own > 1)
        path[at] += second.long() << depth
        branch = 2 * branch + second
    return path.view(-1, features)


def _ranks(places: Tensor) -> Tensor:
    """The places along each axis as whole numbers in the same order, equal where they are equal."""
    ordered, at = places.sort(dim=0)
    steps = torch.nn.functional.pad((ordered[1:] != ordered[:-1]).long(), (0, 0, 1, 0))
    return torch.empty_like(at).scatter_(0, at, steps.cumsum(0))


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


@dataclass(frozen=True, eq=False)
class Beside:
    """Mask m removes all but what is there beside branch m of a sample's tree."""

    features: Tensor
    """(n or 1, V): the path of each feature."""
    paths: Tensor
    """(n, M): the path of each branch."""
    there: Tensor
    """(n, M): bit d is set if the half that the path left aside at depth d is there."""

    @property
    def count(self) -> int:
        return self.paths.shape[1]

    def removed(self, samples: slice, masks: slice) -> Tensor:
        own = self.features if len(self.features) == 1 else self.features[samples]
        apart = own[:, None] ^ self.paths[samples, masks, None]
        # the lowest bit is where a feature and the branch part
        return (torch.neg(apart).bitwise_and_(apart).bitwise_and_(self.there[samples, masks, None])) == 0


def handed_down(amounts: Tensor, depths: Tensor, paths: Tensor, features: Tensor) -> Tensor:
    """What each feature gets (n, V) where all features of branch k (n, K) get its amount."""
    deep, rows = depth_of(features.shape[-1]), torch.arange(len(amounts), device=amounts.device)[:, None]
    tree = amounts.new_zeros(len(amounts), (2 << deep) - 1)
    # unlike sums by scattering this one has an order on a GPU, too
    tree.index_put_((rows, (1 << depths) - 1 + paths), amounts, accumulate=True)
    level = tree[:, :1]
    for depth in range(1, deep + 1):
        first = (1 << depth) - 1
        below = tree[:, first : first + (1 << depth)]
        below.unflatten(-1, (2, -1)).add_(level[:, None])
        level = below
    # a feature halved off earlier has zeros for the halves it was not in
    return level.gather(-1, (features.long() & ((1 << deep) - 1)).expand(len(amounts), -1))
