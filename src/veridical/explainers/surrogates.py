"""LIME: a weighted linear model of how the output depends on which features are there; least squares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import MANY, Positive, Within
from veridical.explainers.base import register
from veridical.explainers.diagnostics import record_split_half
from veridical.explainers.occlusion import FitsCells, coin_masks, responses_to
from veridical.functional.devices import at_a_time
from veridical.models.context import Context
from veridical.perturb.rules import Given
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class Lime(FitsCells):
    """The coefficients of a ridge regression of y on z, where z_i = 1 if feature i was kept.

    Each of `draws` masks removes every feature with one probability, itself uniform on [0, 1], so that the
    number of features removed is uniform on 0..D; the unmasked input is one row more. A mask that removes
    the share d of the features weighs exp(-(d / kernel_width)^2). (Ribeiro et al. 2016, eq. 1 and 2 with a
    quadratic penalty in the place of a limit on the number of features.) On an image with more features than
    one for 8 draws, neighbours are joined into cells, one for 12 draws, which share a coefficient equally.
    """

    draws: Annotated[int, Within(2, MANY)] = 512
    """Random masks per sample."""
    kernel_width: Positive = 0.5
    """Share of features removed at which the weight of a mask has fallen to 1/e."""
    ridge: Positive = 1.0
    """Penalty on the squared coefficients; the intercept has none."""
    join: bool = True
    """Whether neighbouring pixels or patches are joined where there are too few draws to tell them apart."""
    name: ClassVar[str] = "lime"
    version: ClassVar[int] = 4
    summary: ClassVar[str] = "weighted linear fit to randomly masked inputs"
    paper: ClassVar[str] = "Ribeiro et al. 2016"

    def responses(self) -> int:
        return self.draws

    def joins(self) -> bool:
        return self.join

    def rows_per_sample(self, task: Task) -> int:
        return self.draws

    def fitted(self, task: Task, context: Context) -> Tensor:
        features, valid = task.space.n_features, task.space.valid
        keep = 1 - keyed.uniform(context.key / "sizes", task.draw_ids, 0, self.draws)
        masks = coin_masks(context.key / "masks", task.draw_ids, features, self.draws, keep)
        responses = responses_to(task, Given(masks), context.key, context)
        there = task.space.counts(len(task)).to(task.device)[:, None].double()
        out = responses.new_empty(len(task), features)
        for some in sample_blocks(len(task), self.draws * features, task.device):
            removed = masks[some] if valid is None else masks[some] & valid[some, None]
            weights = torch.exp(-((removed.sum(-1) / there[some] / self.kernel_width) ** 2))
            # a feature's removal says what its presence does, with the sign turned; the input removes nothing
            weights = F.pad(weights, (1, 0), value=1.0)
            fit = (removed, -responses[some], weights)
            out[some] = ridge_fit(*fit, self.ridge)
            half = partial(_half_fit, *fit, self.ridge)
            record_split_half(context, task, self.draws, half, some)
        return out.to(task.outputs.dtype)


def _half_fit(removed: Tensor, responses: Tensor, weights: Tensor, ridge: float, half: int) -> Tensor:
    """The fit of every second draw; the row in front belongs to both halves."""
    y, w = (torch.cat([each[:, :1], each[:, 1 + half :: 2]], 1) for each in (responses, weights))
    return ridge_fit(removed[:, half::2], y, w, ridge / 2)


def ridge_fit(removed: Tensor, responses: Tensor, weights: Tensor, ridge: float) -> Tensor:
    """Weighted ridge regression (B, V) of responses (B, 1 + M) on masks (B, M, V), the intercept left free.

    The first response and weight belong to a row that is all False.
    """
    rows = F.pad(removed.double(), (0, 0, 1, 0))
    # the free intercept drops out when everything is measured from its weighted mean
    share = weights / weights.sum(-1, keepdim=True)
    return least_squares(
        rows - share[:, None] @ rows,
        responses - (share * responses).sum(-1, keepdim=True),
        weights,
        ridge,
    )


# --- least squares over boolean masks, one fit per sample -------------------------------------------------


_SOLVER_ELEMENTS = 2**25, 2**28  # float64 numbers a block of samples may take: on a CPU, elsewhere


def sample_blocks(samples: int, elements_per_sample: int, device: torch.device) -> Iterator[slice]:
    """Cut the samples so that the arrays of one block stay within a fixed memory."""
    most = at_a_time(device, *_SOLVER_ELEMENTS)
    size = max(1, most // max(1, elements_per_sample))
    for at in range(0, samples, size):
        yield slice(at, min(samples, at + size))


def solved(gram: Tensor, right: Tensor) -> Tensor:
    """X of gram X = right, (B, M, M) and (B, M, K), for a symmetric positive definite gram; else NaN."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    found: Tensor = torch.cholesky_solve(right, factor)
    return found.masked_fill((failed != 0)[..., None, None], torch.nan)


def least_squares(rows: Tensor, responses: Tensor, weights: Tensor, ridge: Tensor | float) -> Tensor:
    """The coefficients (B, V) that minimise sum_m w_m (y_m - rows_m . b)^2 + ridge |b|^2, one fit per sample.

    Solved over the smaller of masks and features, as X'(XX' + rI)^-1 = (X'X + rI)^-1 X'. A column of
    zeros gets the coefficient 0.
    """
    root = weights.sqrt()
    X, y = rows * root[..., None], responses * root
    wide = X.shape[-1] > X.shape[-2]
    gram = X @ X.mT if wide else X.mT @ X
    size = torch.as_tensor(ridge, dtype=X.dtype, device=X.device)
    gram = gram + size[..., None, None] * torch.eye(gram.shape[-1], dtype=X.dtype, device=X.device)
    found = X.mT @ solved(gram, y[..., None]) if wide else solved(gram, X.mT @ y[..., None])
    return found[..., 0]
