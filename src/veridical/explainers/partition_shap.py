"""PartitionSHAP: Owen values over a tree of neighbouring features, many masks in one call of the model.

A binary tree of neighbouring features is one number a feature: bit d is the half it is in at depth d. The
features of a branch at depth d are those that share its first d bits. What is there beside a branch is as
short: one bit for each half that its path left aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from veridical.core.allowed import MANY, Within
from veridical.explainers.base import register
from veridical.explainers.masking import SharesOut
from veridical.models.context import Context
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given, MaskRule
from veridical.values.space import Space
from veridical.values.task import Task

TOGETHER = 10
"""Masks that one sample is asked about at a time; the next ones follow the answers."""
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
        each = 8 * _room(_sizes(task), self.budget) + (2 << depth_of(task.space.n_features))
        count = -(-len(task) // max(1, _NUMBERS_KEPT // each))
        size = -(-len(task) // count)
        return iter([task]) if count == 1 else (task[at : at + size] for at in range(0, len(task), size))

    def masks(self, task: Task) -> Tensor:
        most = 2 * ((self.budget - 1) // 2)
        return torch.tensor([1 + min(most, rows_of_tree(count)) for count in _sizes(task)])

    def attribute(self, task: Task, context: Context) -> Tensor:
        everything = torch.ones(1, task.space.n_features, dtype=torch.bool, device=task.device)
        low = self._asked(task, Given(everything), context)[:, 0]
        features, high = paths_of(task), task.clean_response("logit")[:, 0].to(low)
        branches = _Branches(low, high, task.space.counts(len(task)), _sizes(task), self.budget)
        rows = torch.arange(len(task), device=task.device)
        while any(counts := branches.next_ones()):
            for count in sorted(set(counts) - {0}):
                index, part, own = rows, task, features
                if len(set(counts)) > 1:
                    alike = [i for i, each in enumerate(counts) if each == count]
                    index = torch.tensor(alike, device=task.device)
                    part, own = task[index], features if len(features) == 1 else features[index]
                paths, there = branches.halve(index, count)
                rule = Beside(own, paths.to(own.dtype), there.to(own.dtype))
                branches.answer(self._asked(part, rule, context))
        return branches.shares(features).to(task.outputs.dtype)

    def _asked(self, task: Task, rule: MaskRule, context: Context) -> Tensor:
        return probe(task, rule, response="logit", key=self.fill_key(context.key), memo=context.memo)


def _sizes(task: Task) -> list[int]:
    """How many features each sample has; where all have all, that is known without a look."""
    if task.space.valid is None:
        return [task.space.n_features] * len(task)
    counts: list[int] = task.space.valid.sum(-1).tolist()
    return counts


def _room(sizes: list[int], budget: int) -> int:
    """How many branches a sample may come to have."""
    return 1 + 2 * min(2 * ((budget - 1) // 2), max(map(rows_of_tree, sizes)))


class _Branches:
    """The branches of all samples that wait to be halved, those that move the output most first.

    Each has a place (sample, k), earlier ones before later ones: its depth, its path, what is there beside it
    (`halving_tree`), how many features it has, the outputs without and with it, and its weight. All of it
    lies on the device, and nothing looks there unless branches may run out.
    """

    def __init__(self, low: Tensor, high: Tensor, size: Tensor, sizes: list[int], budget: int) -> None:
        room = _room(sizes, budget)
        self._left, self._halved = [budget - 2] * len(sizes), 0
        self._filled = torch.ones_like(size)
        self._branch = size.new_zeros(len(size), room, 4)
        self._branch[:, 0, 3] = size
        self._value = low.new_zeros(len(size), room, 3)
        self._value[:, 0] = torch.stack([low, high, torch.ones_like(low)], -1)
        # what changes hands; below 0 where nothing waits
        self._none = low.new_full((), -1.0)  # a number of Python's would be sent to a GPU, which waits
        self._worth = self._none.repeat(len(size), room)
        self._worth[:, 0] = torch.where(size > 1, (high - low).abs(), -1.0)
        # of the 16 branches at depth 2 twelve are halved to the end before fewer than 5 branches wait
        self._plenty = min(sizes) >= 8 and budget <= 10 + 12 * rows_of_tree(min(sizes) // 4)

    def next_ones(self) -> list[int]:
        """How many branches of each sample to halve next."""
        if self._plenty:
            waiting = [1 + 3 * self._halved] * len(self._left)
        else:
            waiting = (self._worth >= 0).sum(-1).tolist()
        may = [max(0, -(-min(TOGETHER, left) // 2)) for left in self._left]
        counts = [min(each) for each in zip(may, waiting, strict=True)]
        self._left = [left - 2 * count for left, count in zip(self._left, counts, strict=True)]
        self._halved += max(counts)
        return counts

    def halve(self, samples: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The masks (n, 2 * count) to ask these samples about: each branch with its first, its second half.

        Of equals the first comes first.
        """
        worth, chosen = self._worth[samples, : 1 + 4 * self._halved], []
        for _ in range(count):
            chosen.append(worth.argmax(-1, keepdim=True))
            worth.scatter_(-1, chosen[-1], -1.0)
        self._open = samples[:, None], torch.cat(chosen, -1)
        self._worth[self._open] = self._none
        depth, path, there, _ = self._branch[self._open].unbind(-1)
        side = 1 << depth
        # with the first half there the path goes on into the second
        return torch.stack([path | side, path], -1).flatten(1), (there | side).repeat_interleave(2, -1)

    def answer(self, found: Tensor) -> None:
        """Hand what was found to the halves, each without and with the other one."""
        rows, at = self._open
        left, right = found.unflatten(-1, (-1, 2)).unbind(-1)
        low, high, weight = self._value[rows, at].unbind(-1)
        depth, path, there, size = self._branch[rows, at].unbind(-1)
        self._value[rows, at] = self._value.new_zeros(3)
        second, both, half, less = path | (1 << depth), there | (1 << depth), size // 2, weight / 2
        branch = _columns(
            [depth + 1] * 4, [path, second] * 2, [there, there, both, both], [half, size - half] * 2
        )
        value = _columns([low, low, right, left], [left, right, high, high], [less] * 4)
        new = rows, self._filled[rows] + torch.arange(branch.shape[1], device=at.device)
        self._filled[rows] += branch.shape[1]
        self._branch[new], self._value[new] = branch, value
        worth = (value[..., 1] - value[..., 0]).abs() * value[..., 2]
        self._worth[new] = torch.where(branch[..., 3] > 1, worth, -1.0)

    def shares(self, features: Tensor) -> Tensor:
        """What each feature gets: equal shares of all branches that were not halved."""
        low, high, weight = self._value.unbind(-1)
        depth, path, _, size = self._branch.unbind(-1)
        return handed_down((high - low) * weight / size.clamp(min=1), depth, path, features)


def _columns(*facts: list[Tensor]) -> Tensor:
    """(n, halves, facts): what is known of each half, those of one branch together."""
    return torch.stack([torch.stack(each, -1) for each in facts], -1).flatten(1, 2)


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
