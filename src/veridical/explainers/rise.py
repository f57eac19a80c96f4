"""RISE: the mean response over random masks under which a feature stays visible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from veridical.allowed import MANY, Between, Count, Within
from veridical.explainers.base import Explainer, register
from veridical.explainers.cells import few_cells
from veridical.explainers.least_squares import sample_blocks
from veridical.explainers.mask_rules import IndependentCoins, mask_pieces, written_out
from veridical.masking.backgrounds import fill_state
from veridical.masking.probe import blocks, probe
from veridical.model.cost import Cost
from veridical.model.predictor import check_finite, repeat_side, take_side
from veridical.model.sessions import look_later
from veridical.random import keyed
from veridical.random.keyed import Key
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
    version: ClassVar[int] = 3
    summary: ClassVar[str] = "mean response over random masks that show a feature"
    paper: ClassVar[str] = "Petsiuk et al. 2018"
    stochastic: ClassVar[bool] = True

    def rows_per_sample(self, task: Task) -> int:
        return self.draws

    def declared(self, task: Task) -> Cost:
        return Cost(len(task) * self.draws * task.fill.repeats_on(task))

    def pieces(self, task: Task) -> Iterator[Task]:
        return mask_pieces(task, self.rows_per_sample(task))

    def attribute(self, task: Task, key: Key) -> Tensor:
        own = key / "masks"
        if task.space.kind == "pixel" and not task.fill.looks_at_mask:
            masks = _SmoothMasks(own, task.ids, task.space.input_shape[-2:], self.draws, self.keep, self.grid)
            mean, covered, weighted = _ask_smooth(task, masks, key)
        else:
            # more coins than masks can tell apart are noise: neighbours share one
            joined = few_cells(task.space, self.grid**2)
            asked = task if joined is None else joined.over(task)
            features = asked.space.n_features
            rule = written_out(IndependentCoins(own, task.ids, features, self.draws, self.keep), len(task))
            answers = probe(asked, rule, response="logit", key=key)
            mean = answers.mean(-1, keepdim=True)
            covered, weighted = answers.new_empty(2, len(task), features)
            for some in sample_blocks(len(task), self.draws * features, task.device):
                shown = (~rule.masks[some]).double()
                covered[some], weighted[some] = shown.sum(1), _weighted(answers[some], shown)
            if joined is not None:
                covered, weighted = covered[:, joined.of], weighted[:, joined.of]
        spread = (weighted - mean * covered) / ((self.draws - 1) * self.keep)
        return (mean + spread).to(task.outputs.dtype)


def _weighted(answers: Tensor, shown: Tensor) -> Tensor:
    """sum over masks of the answer times how visible each feature was: (n, m), (n, m, V) -> (n, V)."""
    return (answers[:, None] @ shown)[:, 0]


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


def _ask_smooth(task: Task, masks: _SmoothMasks, key: Key) -> tuple[Tensor, Tensor, Tensor]:
    """Ask about inputs blended with their fill, which `probe` does not: it asks about whole features.

    Gives the mean answer (N, 1), and the masks' sum and their sum weighted by the answers (N, V).
    """
    fill, predictor, shape = task.fill, task.predictor, task.inputs.shape[1:]
    repeats = fill.repeats_on(task)
    state = fill_state(task, fill)
    total = torch.zeros(len(task), 1, dtype=torch.float64, device=task.device)
    sums = total.new_zeros(len(task), 2, task.space.n_features)
    # new memory for every block would cost more than what is written there
    mixed, wide = task.inputs.new_empty(0), total.new_empty(0)
    with task.session():
        for rows, columns in blocks(len(task), masks.draws, max(1, predictor.rows // repeats)):
            x, across = task.inputs[rows], columns.stop - columns.start
            visible = masks.shown(rows, columns)
            shown = visible.unflatten(-1, (1, 1, *masks.size)).to(x.dtype)
            background = fill.background(state, x, task.ids[rows], key)[:, None]
            # repeats of the fill run fastest, so that each mask's answers lie together
            count = len(x) * across * repeats
            if len(mixed) < count:
                mixed, wide = x.new_empty(count, *shape), total.new_empty(visible.shape)
            filled = mixed[:count].view(len(x), across, repeats, *shape)
            if x.is_floating_point():
                torch.addcmul(background, shown, x[:, None, None] - background, out=filled)
            else:
                torch.where(shown.bool(), x[:, None, None], background, out=filled)
            side = repeat_side(take_side(task.side, rows), across * repeats)
            answers = task.respond(predictor.chunk(mixed[:count], side), "logit")
            target = task.targets[rows].repeat_interleave(across * repeats)
            own = answers.gather(1, target[:, None]).view(len(x), across, repeats)
            mean = own.double().mean(-1)
            total[rows] += mean.sum(-1, keepdim=True)
            both = torch.stack([torch.ones_like(mean), mean], 1)
            sums[rows] += both @ (wide.copy_(visible) if wide.shape == visible.shape else visible.double())
    look_later(total.device, partial(check_finite, total))
    covered, weighted = sums.unbind(1)
    return total / masks.draws, covered, weighted
