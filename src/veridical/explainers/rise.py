"""Explainers by random masks: RISE, and what of the output's variation goes with a feature (Sobol, HSIC)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import MANY, Between, Count, Within
from veridical.core.key import Key
from veridical.explainers.base import FILL_KEY, register
from veridical.explainers.diagnostics import record_split_half
from veridical.explainers.layout import Cells, few_cells, grid_cells
from veridical.explainers.occlusion import ReadsCells, coin_masks, responses_to, usual_repeats
from veridical.explainers.surrogates import sample_blocks
from veridical.models.context import Context
from veridical.models.predictor import check_finite, repeat_side, take_side
from veridical.perturb.fills import Backgrounds
from veridical.perturb.kept_outputs import name_of, outputs_under, together
from veridical.perturb.probe import blocks
from veridical.perturb.rules import Given
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class Rise(ReadsCells):
    """The mean response over masks m, weighted by how visible the feature is: E[y(x, m) m_i] / E[m_i].

    On the pixels of an image masks are `grid` x `grid` coins that show with probability `keep`, shifted at
    random and enlarged bilinearly (Petsiuk et al. 2018, section 3.2); hidden parts show the task's fill.
    In all other spaces, and for fills that read the mask, each feature is kept or removed by its own coin;
    patches and voxels beyond `grid`^2 share one with their neighbours.
    E[m_i] = `keep` exactly, and with the mean response y' taken out first,

        S_i = y' + sum_m (y_m - y') m_i / ((draws - 1) keep)

    is unbiased for the paper's eq. 5 and gives a constant model a constant map.
    """

    draws: Annotated[int, Within(2, MANY)] = 512
    """Random masks per sample."""
    keep: Between = 0.5
    """Probability with which a cell, or a feature, stays visible."""
    grid: Count = 7
    """Cells along each side of an image, before they are enlarged."""
    name: ClassVar[str] = "rise"
    version: ClassVar[int] = 4
    summary: ClassVar[str] = "mean response over random masks that show a feature"
    paper: ClassVar[str] = "Petsiuk et al. 2018"

    def rows_per_sample(self, task: Task) -> int:
        return self.draws

    def cells_of(self, task: Task) -> Cells | None:
        # more coins than masks can tell apart are noise: neighbours share one
        return None if self._smooth(task) else few_cells(task.space, self.grid**2)

    @staticmethod
    def _smooth(task: Task) -> bool:
        return task.space.kind == "pixel" and not task.fill.looks_at_mask

    def fitted(self, task: Task, context: Context) -> Tensor:
        own, features = context.key / "masks", task.space.n_features
        if self._smooth(task):
            smooth = _SmoothMasks(
                own, task.draw_ids, task.space.input_shape[-2:], self.draws, self.keep, self.grid
            )
            totals = _under_smooth(task, smooth, context)
        else:
            masks = coin_masks(own, task.draw_ids, features, self.draws, self.keep)
            name = (own, self.keep)
            responses = responses_to(task, Given(masks), context.key, context, name, clean=False)
            totals = _Totals(len(task), features, task.device)
            for some in sample_blocks(len(task), self.draws * features, task.device):
                totals.add(some, 0, responses[some], (~masks[some]).double())
        record_split_half(context, task, self.draws, lambda half: totals.map(slice(half, half + 1), self))
        return totals.map(slice(2), self).to(task.outputs.dtype)


class _Totals:
    """Sums over the masks of even number and over those of odd number, which are the halves of all draws."""

    def __init__(self, samples: int, features: int, device: torch.device) -> None:
        self.responses = torch.zeros(samples, 2, dtype=torch.float64, device=device)
        self.covered, self.weighted = self.responses.new_zeros(2, samples, 2, features)

    def add(self, samples: slice, first: int, responses: Tensor, shown: Tensor) -> None:
        """Add responses (n, m) to masks from number `first` on, which show each feature so much (n, m, V)."""
        odd = (torch.arange(first, first + responses.shape[1], device=responses.device) % 2).double()
        of_half = torch.stack([1 - odd, odd])
        self.responses[samples] += responses @ of_half.mT
        ones = of_half.expand(len(responses), -1, -1)
        found = torch.cat([ones, ones * responses[:, None]], 1) @ shown
        self.covered[samples] += found[:, :2]
        self.weighted[samples] += found[:, 2:]

    def map(self, halves: slice, of: Rise) -> Tensor:
        """The map (N, V) of one half or of both."""
        draws = sum(len(range(half, of.draws, 2)) for half in range(*halves.indices(2)))
        mean = self.responses[:, halves].sum(1, keepdim=True) / draws
        covered, weighted = self.covered[:, halves].sum(1), self.weighted[:, halves].sum(1)
        return mean + (weighted - mean * covered) / ((draws - 1) * of.keep)


@dataclass(frozen=True, eq=False)
class _SmoothMasks:
    """Keyed low-resolution coins, enlarged bilinearly to the image after a random shift."""

    key: Key
    ids: Tensor
    size: tuple[int, ...]
    draws: int
    keep: float
    grid: int

    def shown(self, samples: slice, masks: slice) -> Tensor:
        """(samples, masks, H * W): how visible each pixel is, between 0 and 1."""
        ids, across = self.ids[samples], self.grid + 1
        draws = torch.arange(self.draws, device=ids.device)[masks]
        coins = keyed.uniform(self.key / "coins", ids, draws, across * across) < self.keep
        shift = keyed.uniform(self.key / "shift", ids, draws, 2)
        down, right = (self._weights(shift[..., i], length) for i, length in enumerate(self.size))
        return (down @ coins.float().unflatten(-1, (across, across)) @ right.mT).flatten(-2)

    def _weights(self, shift: Tensor, length: int) -> Tensor:
        """(samples, masks, length, grid + 1): how far each place lies towards each coin."""
        place = (torch.arange(length, device=shift.device) + 0.5) * (self.grid / length)
        place = (place + shift[..., None] - 0.5).clamp(0, self.grid)
        coin = torch.arange(self.grid + 1, device=shift.device).to(place.dtype)
        # 1 at the coin, and 0 from the next one on
        return (place[..., None] - coin).abs_().neg_().add_(1).clamp_(min=0)


def _under_smooth(task: Task, masks: _SmoothMasks, context: Context) -> _Totals:
    """The totals under smooth masks; `probe` removes whole features."""
    totals = _Totals(len(task), task.space.n_features, task.device)
    name = name_of(task, task.fill, context.key, masks.key, masks.draws, masks.keep, masks.grid)
    responses = totals.responses.new_empty(len(task), masks.draws)
    for rows in together(task, masks.draws):
        part = task if len(rows) == len(task) else task[rows]
        evaluate = partial(_outputs_under_smooth, part, masks, context.key)
        outputs = outputs_under(part, name, context.memo, evaluate)
        own = part.targets.view(-1, 1, 1).expand(-1, masks.draws, 1)
        responses[rows] = outputs.gather(2, own)[..., 0].double()
    check_finite(responses)
    at_once = max(1, task.predictor.rows // task.fill.repeats_on(task))
    for some, columns in blocks(len(task), masks.draws, at_once):
        totals.add(some, columns.start, responses[some, columns], masks.shown(some, columns).double())
    return totals


def _outputs_under_smooth(task: Task, masks: _SmoothMasks, key: Key, rows: Tensor | None) -> Tensor:
    """The logits (n, M, C) of some samples blended with their fill."""
    task = task if rows is None else task[rows]
    masks, fill, predictor = replace(masks, ids=task.draw_ids), task.fill, task.predictor
    behind = Backgrounds(task, fill, key)
    repeats, state = behind.repeats, behind.state
    found: Tensor | None = None
    with task.session():
        for some, columns in blocks(len(task), masks.draws, max(1, predictor.rows // repeats)):
            x, across = task.inputs[some], columns.stop - columns.start
            shown = masks.shown(some, columns).unflatten(-1, (1, 1, *masks.size)).to(x.dtype)
            background = fill.background(state, x, task.draw_ids[some], key)[:, None]
            # repeats of the fill run fastest, so that each mask's responses lie together
            if x.is_floating_point():
                filled = torch.addcmul(background, shown, x[:, None, None] - background)
            else:
                filled = torch.where(shown.bool(), x[:, None, None], background)
            side = repeat_side(take_side(task.side, some), across * repeats)
            outputs = task.respond(predictor.chunk(filled.flatten(0, 2), side), "logit")
            outputs = outputs.view(len(x), across, repeats, -1)
            mean = outputs[:, :, 0] if repeats == 1 else behind.mean(outputs.mT.contiguous().double(), -1)
            if found is None:
                found = mean.new_empty(len(task), masks.draws, mean.shape[-1])
            found[some, columns] = mean
    assert found is not None
    return found


# --- sensitivity indices ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Indices(ReadsCells):
    """Base: pixels are removed by the cells of a grid, more patches than it has by blocks, others alone."""

    grid: Count = 8
    """Cells along each side of an image or volume by pixels."""
    blocks: Count = 25
    """The most blocks that patches are joined into: more would be mostly noise."""

    def masks_of(self, features: int) -> int:
        """Masks evaluated for one sample of so many features, or cells."""
        raise NotImplementedError

    def cells_of(self, task: Task) -> Cells | None:
        whole = task.space.kind in ("pixel", "voxel")
        return grid_cells(task.space, self.grid) if whole else few_cells(task.space, self.blocks)

    def masks(self, task: Task) -> int:
        cells = self.cells_of(task)
        return self.masks_of(task.space.n_features if cells is None else cells.count)

    def rows_per_sample(self, task: Task) -> int:
        return self.masks(task) * task.fill.repeats_on(task)

    def coins(self, task: Task, key: Key, draws: int) -> Tensor:
        """(N, draws, V): what a fair coin for each feature removes."""
        return coin_masks(key, task.draw_ids, task.space.n_features, draws, 0.5)


@register
@dataclass(frozen=True)
class Sobol(_Indices):
    """Total Sobol indices: the share of the output's variance that goes when a feature's mask is fixed.

    Features are kept by independent coins m. With m_i the same coins, the i-th drawn anew,
    S_i = E[(y(m) - y(m_i))^2] / (2 Var y) (Jansen's estimator; Fel et al. 2021, eq. 3). Half of the time the
    new coin is the old one and the rows are the same: here it is always turned, and 4 stands for the 2. It is
    not signed. On a model that is linear in m, S_i = w_i^2 / sum_j w_j^2. Rows: draws x (features + 1).
    """

    draws: Annotated[int, Within(2, MANY)] | None = None
    """Random masks, in each of which every coin is turned once; None: 8 to 32, as many as make 512 masks."""
    name: ClassVar[str] = "sobol"
    version: ClassVar[int] = 3
    summary: ClassVar[str] = "share of the output's variance under random masks that involves a feature"
    paper: ClassVar[str] = "Fel et al. 2021"

    def draws_for(self, features: int) -> int:
        """How often the coins of so many features, or cells, are drawn."""
        return usual_repeats(features + 1, 8, 32) if self.draws is None else self.draws

    def masks_of(self, features: int) -> int:
        return self.draws_for(features) * (features + 1)

    def fitted(self, task: Task, context: Context) -> Tensor:
        draws = self.draws_for(task.space.n_features)
        coins = self.coins(task, context.key / "coins", draws)[:, :, None]
        turned = coins ^ torch.eye(task.space.n_features, dtype=torch.bool, device=task.device)
        rule = Given(torch.cat([coins, turned], 2).flatten(1, 2))
        name = (context.key, "each coin turned", draws)
        responses = responses_to(task, rule, FILL_KEY, context, name, clean=False)
        responses = responses.unflatten(1, (draws, -1))
        base, moved = responses[..., :1], responses[..., 1:]
        spread = base[..., 0].var(1, keepdim=True)
        squares = (base - moved).square()
        # what both halves are divided by does not change their correlation
        record_split_half(context, task, draws, lambda half: squares[:, half::2].mean(1))
        share = squares.mean(1) / (4 * spread)
        return share.nan_to_num(0.0, 0.0, 0.0).to(task.outputs.dtype)


@register
@dataclass(frozen=True)
class Hsic(_Indices):
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

    def masks_of(self, features: int) -> int:
        return self.draws

    def fitted(self, task: Task, context: Context) -> Tensor:
        masks = self.coins(task, context.key / "masks", self.draws)
        responses = responses_to(task, Given(masks), FILL_KEY, context, context.key / "masks", clean=False)

        def half(at: int) -> Tensor:
            return dependence(masks[:, at::2], responses[:, at::2])

        record_split_half(context, task, self.draws, half)
        return dependence(masks, responses).to(task.outputs.dtype)


def dependence(masks: Tensor, responses: Tensor) -> Tensor:
    """HSIC (n, V) between masks (n, m, V) and responses (n, m)."""
    # one sample at a time: the kernel of its outputs is (m, m)
    return torch.cat([_dependence(*pair) for pair in zip(masks.split(1), responses.split(1), strict=True)])


def _dependence(masks: Tensor, responses: Tensor) -> Tensor:
    apart = (responses[:, :, None] - responses[:, None]).abs_()
    width = apart.flatten(1).median(1).values.clamp(min=torch.finfo(apart.dtype).tiny)
    moves = apart.amax((1, 2))[:, None] > 0
    # all in one and the same memory: new memory costs as much as what is computed
    alike = apart.div_(width[:, None, None]).square_().neg_().div_(2).exp_()
    alike.sub_(alike.mean(1, keepdim=True))
    alike.sub_(alike.mean(2, keepdim=True))
    # K_i = s_i s_i' / 2 + a constant that centring takes away, with s_i = 1 kept, -1 removed
    signs = 1.0 - 2.0 * masks.double()
    found: Tensor = (signs * (alike @ signs)).sum(1) / 2 / (responses.shape[1] - 1) ** 2
    return torch.where(moves, found, 0.0)
