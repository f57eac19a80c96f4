"""Regions: groups of features that are removed together, as squares of pixels or superpixels are.

A region is removed feature by feature of the task's own space, so a task need not be derived (and its model
not evaluated again) to see it through coarser features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from veridical.core.space import Space
from veridical.errors import InputError
from veridical.functional import positions


@dataclass(frozen=True, eq=False)
class Regions:
    """Which region each feature belongs to: `labels` (1 or N, V), -1 for none, and how many there may be."""

    labels: Tensor
    count: int

    def sizes(self, samples: int) -> Tensor:
        """Features in each region (N, R); 0 where a sample does not have the region."""
        return self._sizes.expand(samples, -1)

    @cached_property
    def most(self) -> int:
        """How many regions the sample that has most of them has."""
        return int((self._sizes > 0).sum(-1).max())

    @cached_property
    def slots(self) -> Tensor:
        """The labels with a spare slot, which is cut off again, for features of no region."""
        return torch.where(self.labels < 0, self.count, self.labels)

    @cached_property
    def absent(self) -> Tensor | None:
        """Regions that a sample does not have (1 or N, R), or None where all have all."""
        gaps = self._sizes == 0
        return gaps if bool(gaps.any()) else None

    @cached_property
    def within(self) -> Tensor:
        """The place of each feature among those of its region (1 or N, V); likewise of those without one."""
        ends = self._sizes.cumsum(-1)
        starts = torch.cat([ends - self._sizes, ends[:, -1:]], -1)
        return positions(self.slots.argsort(dim=-1, stable=True)) - starts.gather(-1, self.slots)

    @cached_property
    def present(self) -> Tensor:
        """How many regions each sample has (1 or N,)."""
        return (self._sizes > 0).sum(-1)

    @cached_property
    def _sizes(self) -> Tensor:
        out = self.labels.new_zeros(len(self.labels), self.count + 1)
        return out.scatter_add_(1, self.slots, torch.ones_like(self.labels))[:, :-1]

    def relevance(self, values: Tensor, mean: bool = False) -> Tensor:
        """The relevance of each region (N, R): the sum over its features, or their mean."""
        total = values.new_zeros(len(values), self.count + 1, dtype=torch.float64)
        total = total.scatter_add_(1, self.slots.expand(len(values), -1), values.double())[:, :-1]
        return total / self.sizes(len(values)).clamp(min=1) if mean else total

    def tied(self, relevance: Tensor) -> Tensor:
        """Whether two regions of a sample are equally relevant (N,)."""
        if self.absent is not None:
            relevance = relevance.masked_fill(self.absent, torch.nan)
        ordered = relevance.sort(-1).values
        return (ordered[:, 1:] == ordered[:, :-1]).any(-1)


@dataclass(frozen=True, eq=False)
class Removal:
    """Regions in the order they are removed, in terms of features.

    `ranks` (N, V) places the features, region after region; `gone` (N, R) counts the features removed after
    each region; `regions` (N,) says how many regions a sample has.
    """

    ranks: Tensor
    gone: Tensor
    regions: Tensor

    def share(self, steps: int) -> Tensor:
        """The share of its regions a sample has lost after 0, 1, ..., `steps` of them (N, steps + 1)."""
        step = torch.arange(steps + 1, device=self.regions.device)
        return torch.minimum(step, self.regions[:, None]) / self.regions[:, None].clamp(min=1).double()


def removal(
    regions: Regions, relevance: Tensor, least_first: bool = False, ranks: Tensor | None = None
) -> Removal:
    """Order regions by relevance, the most relevant first unless `least_first`.

    Ties keep their order or, where the `ranks` (N, V) of the features are given, follow those of the first
    feature of each.
    """
    if regions.absent is not None:
        relevance = relevance.masked_fill(regions.absent, torch.inf if least_first else -torch.inf)
    if ranks is None:
        order = relevance.argsort(dim=-1, descending=not least_first, stable=True)
    else:
        first = ranks.new_full((len(ranks), regions.count + 1), ranks.shape[-1])
        first = first.scatter_reduce_(1, regions.slots.expand(len(ranks), -1), ranks, "amin")[:, :-1]
        beforehand = first.argsort(dim=-1, descending=not least_first, stable=True)
        ranked = relevance.gather(-1, beforehand)
        order = beforehand.gather(-1, ranked.argsort(dim=-1, descending=not least_first, stable=True))
    sizes = regions.sizes(len(relevance)).gather(-1, order)
    gone = sizes.cumsum(-1)
    # what is gone before a region, in a place for each; features of no region come last
    before = gone.new_empty(len(gone), regions.count + 1)
    before[:, -1] = gone[:, -1]
    before.scatter_(-1, order, gone - sizes)
    ranks = before.gather(-1, regions.slots.expand(len(relevance), -1)).add_(regions.within)
    return Removal(ranks, gone, regions.present.expand(len(relevance)))


def squares(space: Space, side: int) -> Regions:
    """Squares of `side` x `side` pixels, smaller at the edges; in spaces without a grid, each feature."""
    if side < 1:
        raise InputError(f"a square needs a side of at least one pixel, got {side}")
    if space.kind != "pixel" or space.valid is not None:
        return each_feature(space)
    return _squares(space.input_shape, side, space.labels.device)


@lru_cache(maxsize=32)
def _squares(shape: tuple[int, ...], side: int, device: torch.device) -> Regions:
    height, width = shape[-2:]
    with torch.inference_mode(False):
        patches = Space.patches(shape, (min(side, height), min(side, width)))
        return Regions(patches.labels.reshape(1, -1).to(device), patches.n_features)


def each_feature(space: Space) -> Regions:
    """Every feature a region of its own; those that do not exist in a sample belong to none."""
    labels = torch.arange(space.n_features, device=space.labels.device)[None]
    if space.valid is not None:
        labels = torch.where(space.valid, labels, -1)
    return Regions(labels, space.n_features)


def superpixels(images: Tensor, segments: int = 64, compactness: float = 0.1, iterations: int = 5) -> Regions:
    """Cut images (N, C, H, W) into about `segments` compact pieces of like colour, each image by itself.

    Cluster pixels by colour and place, beginning with a regular grid; a pixel may only join one of the nine
    cells around it (simple linear iterative clustering, Achanta et al. 2012). Colours are scaled to the
    image's own range, and `compactness` weighs a distance of one cell against it.
    """
    if segments < 2 or compactness <= 0:
        raise InputError(f"superpixels need segments >= 2 and compactness > 0, got {segments}, {compactness}")
    count, _, height, width = images.shape
    down = max(1, min(height, round((segments * height / width) ** 0.5)))
    across = max(1, min(width, round(segments / down)))
    device = images.device
    row = torch.arange(height, device=device) * down // height
    column = torch.arange(width, device=device) * across // width
    cell = (row[:, None] * across + column).reshape(-1)
    near = _neighbouring_cells(row, column, down, across)

    flat = images.reshape(count, images.shape[1], -1).double()
    low, high = flat.amin((1, 2), keepdim=True), flat.amax((1, 2), keepdim=True)
    colour = (flat - low) / (high - low).clamp(min=1e-12)
    down_place = torch.arange(height, device=device).double()[:, None].expand(height, width) * down / height
    across_place = torch.arange(width, device=device).double().expand(height, width) * across / width
    place = torch.stack([down_place.reshape(-1), across_place.reshape(-1)]) * compactness
    points = torch.cat([colour, place.expand(count, -1, -1)], 1)

    label = cell.expand(count, -1)
    for _ in range(iterations):
        centre = _centres(points, label, down * across)
        best = torch.full_like(points[:, 0], torch.inf)
        for candidates in near:
            there = centre.gather(2, candidates.expand(count, points.shape[1], -1))
            distance = (points - there).square().sum(1)
            # a cell that has lost all its pixels has no centre, and NaN is never nearer
            closer = distance < best
            best = torch.where(closer, distance, best)
            label = torch.where(closer, candidates, label)
    return Regions(label, down * across)


def _centres(points: Tensor, label: Tensor, cells: int) -> Tensor:
    """The mean point of every cell (N, D, cells)."""
    index = label[:, None].expand(-1, points.shape[1], -1)
    total = points.new_zeros(len(points), points.shape[1], cells).scatter_add_(2, index, points)
    size = points.new_zeros(len(points), cells).scatter_add_(1, label, torch.ones_like(points[:, 0]))
    return total / size[:, None]


def _neighbouring_cells(row: Tensor, column: Tensor, down: int, across: int) -> list[Tensor]:
    """For each pixel the nine cells around its own, as nine maps of cell numbers (H * W,)."""
    out = []
    for up in (0, -1, 1):
        for left in (0, -1, 1):
            r, c = (row + up).clamp(0, down - 1), (column + left).clamp(0, across - 1)
            out.append((r[:, None] * across + c).reshape(-1))
    return out
