"""LIME: a weighted linear model of how the output depends on which features are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical import rng
from veridical.errors import InputError
from veridical.explainers.base import Explainer, register
from veridical.explainers.coalitions import (
    IndependentCoins,
    mask_pieces,
    sample_blocks,
    shared_counts,
    solved,
    written_out,
)
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
    version: ClassVar[int] = 2
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

    def pieces(self, task: Task) -> Iterator[Task]:
        return mask_pieces(task, self.rows_per_sample(task))

    def attribute(self, task: Task, key: Key) -> Tensor:
        features, valid = task.space.n_features, task.space.valid
        keep = 1 - rng.uniform(key / "sizes", task.ids, 0, self.draws)
        rule = written_out(IndependentCoins(key / "masks", task.ids, features, self.draws, keep), len(task))
        answers = probe(task, rule, response="logit", key=key, with_clean=True)
        there = task.space.counts(len(task)).to(task.device)[:, None].double()
        out = answers.new_empty(len(task), features)
        for some in sample_blocks(len(task), (self.draws + 1) * features):
            removed = rule.masks[some] if valid is None else rule.masks[some] & valid[some, None]
            kept = removed.new_ones(len(removed), self.draws + 1, features)  # the input itself in front
            torch.logical_not(removed, out=kept[:, 1:])
            gram = shared_counts(kept) if features > self.draws + 1 else None
            # how many of its own features a mask keeps stands on the diagonal
            gone = (~kept).sum(-1) if gram is None else features - gram.diagonal(dim1=-2, dim2=-1)
            weights = torch.exp(-((gone / there[some] / self.kernel_width) ** 2))
            out[some] = ridge_fit(kept, answers[some], weights, self.ridge, gram)
        return out.to(task.outputs.dtype)


def ridge_fit(
    kept: Tensor, answers: Tensor, weights: Tensor, ridge: float, gram: Tensor | None = None
) -> Tensor:
    """Weighted ridge regression (B, V) of answers (B, M) on truth values (B, M, V), the intercept left free.

    Solved over the smaller of masks and features; `gram` is `shared_counts(kept)` if it is known, and is
    written over.
    """
    ones = kept.view(torch.uint8)
    if kept.shape[-1] <= kept.shape[-2]:
        # the free intercept drops out when everything is measured from its weighted mean
        total, root = weights.sum(-1, keepdim=True), weights.sqrt()
        answers = answers - (answers * weights).sum(-1, keepdim=True) / total
        scaled = ones.double().mul_(root[..., None])
        mean = scaled.mT @ root[..., None] / total[..., None]
        gram = (scaled.mT @ scaled).baddbmm_(mean, (mean * total[..., None]).mT, alpha=-1)
        gram.diagonal(dim1=-2, dim2=-1).add_(ridge)
        return solved(gram, (scaled.mT @ (answers * root)[..., None]))[..., 0]
    # b = X'z with (XX' + ridge / W) z = y - c, where the intercept c is such that z sums to 0
    gram = shared_counts(kept) if gram is None else gram
    gram.diagonal(dim1=-2, dim2=-1).add_(ridge / weights.clamp(min=1e-200))  # less is as good as none
    of_answers, of_ones = solved(gram, torch.stack([answers, torch.ones_like(answers)], -1)).unbind(-1)
    dual = of_answers - of_ones * (of_answers.sum(-1, keepdim=True) / of_ones.sum(-1, keepdim=True))
    return (dual[:, None] @ ones.double())[:, 0]
