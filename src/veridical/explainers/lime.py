"""LIME: a weighted linear model of how the output depends on which features are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical import rng
from veridical.errors import InputError
from veridical.explainers.base import Explainer, register
from veridical.explainers.coalitions import IndependentCoins, least_squares, sample_blocks, written_out
from veridical.probe import probe
from veridical.rng import Key
from veridical.task import Task


@register
@dataclass(frozen=True)
class Lime(Explainer):
    """The coefficients of a ridge regression of y on z, where z_i = 1 if feature i was kept.

    Each of `draws` masks removes every feature with one probability, itself uniform on [0, 1], so that the
    number of features removed is uniform on 0..D; the unmasked input is one row more. A mask that removes
    the share d of the features weighs exp(-(d / kernel_width)^2). The intercept is not penalised; `ridge` is
    the penalty on the coefficients (Ribeiro et al. 2016, eq. 1 and 2 with a quadratic penalty in the place
    of a limit on the number of features).
    """

    draws: int = 512
    kernel_width: float = 0.5
    ridge: float = 1.0
    name: ClassVar[str] = "lime"
    summary: ClassVar[str] = "weighted linear fit to randomly masked inputs"
    paper: ClassVar[str] = "Ribeiro et al. 2016"
    stochastic: ClassVar[bool] = True
    reads_outputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise InputError(f"LIME fits a line and needs at least 2 draws, got {self.draws}")
        if self.kernel_width <= 0:
            raise InputError(f"kernel_width is a positive share of the features, got {self.kernel_width}")
        if self.ridge <= 0:
            raise InputError(f"ridge must be positive, or the fit is not unique; got {self.ridge}")

    def rows_per_sample(self, task: Task) -> int:
        return self.draws

    def attribute(self, task: Task, key: Key) -> Tensor:
        features, valid = task.space.n_features, task.space.valid
        keep = 1 - rng.uniform(key / "sizes", task.ids, 0, self.draws)
        rule = written_out(IndependentCoins(key / "masks", task.ids, features, self.draws, keep), len(task))
        answers = probe(task, rule, response="logit", key=key, with_clean=True)
        there = task.space.counts(len(task)).to(task.device)[:, None].double()
        out = answers.new_empty(len(task), features)
        for some in sample_blocks(len(task), (self.draws + 1) * features):
            removed = rule.masks[some] if valid is None else rule.masks[some] & valid[some, None]
            removed = torch.cat([torch.zeros_like(removed[:, :1]), removed], 1)
            share = removed.sum(-1) / there[some]
            weights = torch.exp(-((share / self.kernel_width) ** 2))
            out[some] = self._fit((~removed).double(), answers[some], weights)
        return out.to(task.outputs.dtype)

    def _fit(self, kept: Tensor, answers: Tensor, weights: Tensor) -> Tensor:
        # the free intercept drops out when everything is measured from its weighted mean
        share = (weights / weights.sum(-1, keepdim=True))[..., None]
        kept = kept - (kept * share).sum(1, keepdim=True)
        answers = answers - (answers * share[..., 0]).sum(1, keepdim=True)
        return least_squares(kept, answers, weights, self.ridge)
