"""How much of the output's variation under random masks goes with each feature: Sobol indices and HSIC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from veridical.core.allowed import MANY, Count, Within
from veridical.core.key import Key
from veridical.explainers.base import FILL_KEY, Explainer, register
from veridical.explainers.cells import Cells, few_cells, grid_cells
from veridical.explainers.mask_rules import IndependentCoins, mask_pieces, written_out
from veridical.explainers.repeatability import note_halves
from veridical.functional.devices import at_a_time
from veridical.perturb.probe import probe
from veridical.values.task import Task


@dataclass(frozen=True, eq=False)
class ByCells:
    """Masks over cells (N, M, cells), laid over the features that lie in each cell."""

    masks: Tensor
    cells: Tensor
    """(V,): the cell of each feature."""

    @property
    def count(self) -> int:
        return self.masks.shape[1]

    def removed(self, samples: slice, masks: slice) -> Tensor:
        return self.masks[samples, masks][..., self.cells]


@dataclass(frozen=True)
class _RandomMasks(Explainer):
    """Base: pixels are removed by the cells of a grid, more patches than it has by blocks, others alone."""

    grid: Count = 8
    """Cells along each side of an image or volume by pixels."""
    blocks: Count = 25
    """The most blocks that patches are joined into: more would be mostly noise."""
    stochastic: ClassVar[bool] = True

    def masks(self, features: int) -> int:
        """Masks that one sample is asked about."""
        raise NotImplementedError

    def indices(self, task: Task, cells: Tensor, count: int, key: Key) -> Tensor:
        """The index (n, count) of each cell; `cells` (V,) says which one each feature lies in."""
        raise NotImplementedError

    def stated(self, task: Task) -> dict[str, Any]:
        joined = self._joined(task)
        return {"cells": joined.in_words()} if joined is not None and joined.count < len(joined.of) else {}

    def _joined(self, task: Task) -> Cells | None:
        whole = task.space.kind in ("pixel", "voxel")
        return grid_cells(task.space, self.grid) if whole else few_cells(task.space, self.blocks)

    def _cells(self, task: Task) -> tuple[Tensor, int]:
        features, cells = task.space.n_features, self._joined(task)
        if cells is None:
            return torch.arange(features, device=task.device), features
        return cells.of, cells.count

    def rows_per_sample(self, task: Task) -> int:
        return self.masks(self._cells(task)[1]) * task.fill.repeats_on(task)

    def pieces(self, task: Task) -> Iterator[Task]:
        return mask_pieces(task, self.rows_per_sample(task))

    def attribute(self, task: Task, key: Key) -> Tensor:
        cells, count = self._cells(task)
        return self.indices(task, cells, count, key)[:, cells].to(task.outputs.dtype)


def _coins(task: Task, key: Key, count: int, draws: int) -> Tensor:
    """(N, draws, count): what a fair coin for each cell removes."""
    return written_out(IndependentCoins(key, task.draw_ids, count, draws, 0.5), len(task)).masks


@register
@dataclass(frozen=True)
class Sobol(_RandomMasks):
    """Total Sobol indices: the share of the output's variance that goes when a feature's mask is fixed.

    Features are kept by independent coins m. With m_i the same coins, the i-th drawn anew,
    S_i = E[(y(m) - y(m_i))^2] / (2 Var y) (Jansen's estimator; Fel et al. 2021, eq. 3). Half of the time the
    new coin is the old one and the rows are the same: here it is always turned, and 4 stands for the 2. It is
    not signed. On a model that is linear in m, S_i = w_i^2 / sum_j w_j^2. Rows: draws x (features + 1).
    """

    draws: Annotated[int, Within(2, MANY)] = 32
    """Random masks, in each of which every coin is turned once."""
    name: ClassVar[str] = "sobol"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "share of the output's variance under random masks that involves a feature"
    paper: ClassVar[str] = "Fel et al. 2021"

    def masks(self, features: int) -> int:
        return self.draws * (features + 1)

    def indices(self, task: Task, cells: Tensor, count: int, key: Key) -> Tensor:
        coins = _coins(task, key / "coins", count, self.draws)[:, :, None]
        turned = coins ^ torch.eye(count, dtype=torch.bool, device=task.device)
        rule = ByCells(torch.cat([coins, turned], 2).flatten(1, 2), cells)
        answers = probe(task, rule, response="logit", key=FILL_KEY).unflatten(1, (self.draws, -1))
        base, moved = answers[..., :1], answers[..., 1:]
        spread = base[..., 0].var(1, keepdim=True)
        squares = (base - moved).square()
        # what both halves are divided by does not change their correlation
        note_halves(self, task, self.draws, lambda half: squares[:, half::2].mean(1))
        share = squares.mean(1) / (4 * spread)
        return share.nan_to_num(0.0, 0.0, 0.0)


@register
@dataclass(frozen=True)
class Hsic(_RandomMasks):
    """Dependence between a feature's mask and the output, by the Hilbert-Schmidt independence criterion.

    HSIC_i = tr(K_i H L H) / (draws - 1)^2 over random masks, where K_i is 1 for two masks that treat feature
    i alike and 0 otherwise, L is a Gaussian kernel of the outputs whose width is the median distance, and H
    centres (Novello et al. 2022, eq. 3). It is not signed. Rows: draws.
    """

    draws: Annotated[int, Within(4, MANY)] = 512
    """Random masks."""
    name: ClassVar[str] = "hsic"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "dependence of the output on a feature's random mask"
    paper: ClassVar[str] = "Novello et al. 2022"

    def masks(self, features: int) -> int:
        return self.draws

    def indices(self, task: Task, cells: Tensor, count: int, key: Key) -> Tensor:
        masks = _coins(task, key / "masks", count, self.draws)
        answers = probe(task, ByCells(masks, cells), response="logit", key=FILL_KEY)

        def half(at: int) -> Tensor:
            return dependence(masks[:, at::2], answers[:, at::2])

        note_halves(self, task, self.draws, half)
        return dependence(masks, answers)


def dependence(masks: Tensor, answers: Tensor) -> Tensor:
    """HSIC (n, V) between masks (n, m, V) and answers (n, m)."""
    # on a CPU one sample at a time stays in its cache
    few = at_a_time(answers, 1, len(answers))
    found = [_dependence(*pair) for pair in zip(masks.split(few), answers.split(few), strict=True)]
    return found[0] if len(found) == 1 else torch.cat(found)


def _dependence(masks: Tensor, answers: Tensor) -> Tensor:
    apart = (answers[:, :, None] - answers[:, None]).abs_()
    width = _median(apart).clamp(min=torch.finfo(apart.dtype).tiny)
    moves = apart.amax((1, 2))[:, None] > 0
    # all in one and the same memory: new memory costs as much as what is computed
    alike = apart.div_(width[:, None, None]).square_().neg_().div_(2).exp_()
    alike.sub_(alike.mean(1, keepdim=True))
    alike.sub_(alike.mean(2, keepdim=True))
    # K_i = s_i s_i' / 2 + a constant that centring takes away, with s_i = 1 kept, -1 removed
    signs = 1.0 - 2.0 * masks.double()
    found: Tensor = (signs * (alike @ signs)).sum(1) / 2 / (answers.shape[1] - 1) ** 2
    return torch.where(moves, found, 0.0)


def _median(apart: Tensor) -> Tensor:
    """The lower median (n,) of all distances (n, m, m): zeros from each to itself, all others twice."""
    many = apart.shape[-1]
    behind = (many**2 - 1) // 2 - many
    if behind < 0:
        return torch.zeros_like(apart[:, 0, 0])
    row, column = torch.triu_indices(many, many, 1, device=apart.device)
    return apart.flatten(1).index_select(1, row * many + column).kthvalue(behind // 2 + 1).values
