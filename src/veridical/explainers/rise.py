"""RISE: the mean response over random masks under which a feature stays visible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import MANY, Between, Count, Within
from veridical.core.key import Key
from veridical.explainers.base import Explainer, register
from veridical.explainers.cells import Cells, few_cells
from veridical.explainers.least_squares import sample_blocks
from veridical.explainers.mask_rules import IndependentCoins, mask_pieces, written_out
from veridical.explainers.repeatability import note_halves
from veridical.models.cost import Cost
from veridical.models.predictor import check_finite, repeat_side, take_side
from veridical.perturb.backgrounds import fill_state
from veridical.perturb.probe import blocks, probe
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class Rise(Explainer):
    """The mean response over masks m, weighted by how visible the feature is: E[y(x, m) m_i] / E[m_i].

    On the pixels of an image masks are `grid` x `grid` coins that show with probability `keep`, shifted at
    random and enlarged bilinearly (Petsiuk et al. 2018, section 3.2); hidden parts show the task's fill.
    In all other spaces, and for fills that look at the mask, each feature is kept or removed by its own coin;
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
    stochastic: ClassVar[bool] = True

    def rows_per_sample(self, task: Task) -> int:
        return self.draws

    def declared(self, task: Task) -> Cost:
        return Cost(len(task) * self.draws * task.fill.repeats_on(task))

    def pieces(self, task: Task) -> Iterator[Task]:
        return mask_pieces(task, self.rows_per_sample(task))

    def _joined(self, task: Task) -> Cells | None:
        # more coins than masks can tell apart are noise: neighbours share one
        return None if self._smooth(task) else few_cells(task.space, self.grid**2)

    @staticmethod
    def _smooth(task: Task) -> bool:
        return task.space.kind == "pixel" and not task.fill.looks_at_mask

    def stated(self, task: Task) -> dict[str, Any]:
        joined = self._joined(task)
        return {} if joined is None else {"cells": joined.in_words()}

    def attribute(self, task: Task, key: Key) -> Tensor:
        own, joined = key / "masks", self._joined(task)
        if self._smooth(task):
            masks = _SmoothMasks(
                own, task.draw_ids, task.space.input_shape[-2:], self.draws, self.keep, self.grid
            )
            totals = _ask_smooth(task, masks, key)
        else:
            asked = task if joined is None else joined.over(task)
            features = asked.space.n_features
            rule = written_out(
                IndependentCoins(own, task.draw_ids, features, self.draws, self.keep), len(task)
            )
            answers = probe(asked, rule, response="logit", key=key)
            totals = _Totals(len(task), features, task.device)
            for some in sample_blocks(len(task), self.draws * features, task.device):
                totals.add(some, 0, answers[some], (~rule.masks[some]).double())
        note_halves(self, task, self.draws, lambda half: totals.map(slice(half, half + 1), self))
        values = totals.map(slice(2), self)
        return (values if joined is None else values[:, joined.of]).to(task.outputs.dtype)


class _Totals:
    """Sums over the masks of even number and over those of odd number, which are the halves of all draws."""

    def __init__(self, samples: int, features: int, device: torch.device) -> None:
        self.answers = torch.zeros(samples, 2, dtype=torch.float64, device=device)
        self.covered, self.weighted = self.answers.new_zeros(2, samples, 2, features)

    def add(self, samples: slice, first: int, answers: Tensor, shown: Tensor) -> None:
        """Add answers (n, m) to masks from the number `first` on that show each feature so much (n, m, V)."""
        odd = (torch.arange(first, first + answers.shape[1], device=answers.device) % 2).double()
        of_half = torch.stack([1 - odd, odd])
        self.answers[samples] += answers @ of_half.mT
        ones = of_half.expand(len(answers), -1, -1)
        found = torch.cat([ones, ones * answers[:, None]], 1) @ shown
        self.covered[samples] += found[:, :2]
        self.weighted[samples] += found[:, 2:]

    def map(self, halves: slice, of: Rise) -> Tensor:
        """The map (N, V) of one half or of both."""
        draws = sum(len(range(half, of.draws, 2)) for half in range(*halves.indices(2)))
        mean = self.answers[:, halves].sum(1, keepdim=True) / draws
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


def _ask_smooth(task: Task, masks: _SmoothMasks, key: Key) -> _Totals:
    """Ask about inputs blended with their fill, which `probe` does not: it asks about whole features."""
    fill, predictor, shape = task.fill, task.predictor, task.inputs.shape[1:]
    repeats = fill.repeats_on(task)
    state = fill_state(task, fill)
    totals = _Totals(len(task), task.space.n_features, task.device)
    # new memory for every block would cost more than what is written there
    mixed, wide = task.inputs.new_empty(0), totals.answers.new_empty(0)
    with task.session():
        for rows, columns in blocks(len(task), masks.draws, max(1, predictor.rows // repeats)):
            x, across = task.inputs[rows], columns.stop - columns.start
            visible = masks.shown(rows, columns)
            shown = visible.unflatten(-1, (1, 1, *masks.size)).to(x.dtype)
            background = fill.background(state, x, task.draw_ids[rows], key)[:, None]
            # repeats of the fill run fastest, so that each mask's answers lie together
            count = len(x) * across * repeats
            if len(mixed) < count:
                mixed, wide = x.new_empty(count, *shape), wide.new_empty(visible.shape)
            filled = mixed[:count].view(len(x), across, repeats, *shape)
            if x.is_floating_point():
                torch.addcmul(background, shown, x[:, None, None] - background, out=filled)
            else:
                torch.where(shown.bool(), x[:, None, None], background, out=filled)
            side = repeat_side(take_side(task.side, rows), across * repeats)
            answers = task.respond(predictor.chunk(mixed[:count], side), "logit")
            target = task.targets[rows].repeat_interleave(across * repeats)
            own = answers.gather(1, target[:, None]).view(len(x), across, repeats)
            exact = wide.copy_(visible) if wide.shape == visible.shape else visible.double()
            totals.add(rows, columns.start, own.double().mean(-1), exact)
    check_finite(totals.answers)
    return totals
