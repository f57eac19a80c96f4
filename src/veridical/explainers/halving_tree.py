"""A binary tree of neighbouring features as one number a feature: bit d is the half it is in at depth d.

The features of a branch at depth d are those that share its first d bits. What is there beside a branch is
as short: one bit for each half that its path left aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from veridical.values.space import Space
from veridical.values.task import Task

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
