"""LIME: a weighted linear model of how the output depends on which features are there; least squares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from veridical.core.allowed import MANY, Positive, Within
from veridical.explainers.base import register
from veridical.explainers.diagnostics import record_split_half
from veridical.explainers.occlusion import ROWS_PER_FEATURE, FitsBank
from veridical.functional.devices import at_a_time
from veridical.models.context import Context
from veridical.perturb.mask_bank import Bank


@register
@dataclass(frozen=True)
class Lime(FitsBank):
    """The coefficients of a ridge regression of y on z, where z_i = 1 if feature i was kept.

    The number of features removed is uniform on 0..D, and a mask that removes the share d of them weighs
    exp(-(d / kernel_width)^2); the unmasked input is one row more. (Ribeiro et al. 2016, eq. 1 and 2 with a
    quadratic penalty in the place of a limit on the number of features.) Where all 2^D masks fit in `draws`
    each is evaluated and that mean over masks is exact. Up to one feature for 8 draws, masks are those that
    KernelSHAP draws with as many rows, each weighed by how much likelier it is here than there: one call
    evaluates them once. Beyond that it draws its own, evenly over sizes, as it has no rows to spare. What
    responses owe to the number of features alone, beyond a straight line, is fitted beside: over all masks it
    is no part of a coefficient, but in a sample it is much of the noise. On an image with more features than
    one for 8 draws, neighbours are joined into cells, one for 12 draws, which share a coefficient equally.
    """

    draws: Annotated[int, Within(3, MANY)] = 512
    """Rows evaluated per sample, at most."""
    kernel_width: Positive = 0.5
    """Share of features removed at which the weight of a mask has fallen to 1/e."""
    ridge: Positive = 1.0
    """Penalty on the squared coefficients; the intercept has none."""
    join: bool = True
    """Whether neighbouring pixels or patches are joined where there are too few draws to tell them apart."""
    name: ClassVar[str] = "lime"
    version: ClassVar[int] = 5
    summary: ClassVar[str] = "weighted linear fit to randomly masked inputs"
    paper: ClassVar[str] = "Ribeiro et al. 2016"

    def responses(self) -> int:
        return self.draws

    def joins(self) -> bool:
        return self.join

    def even_above(self) -> int:
        return self.draws // ROWS_PER_FEATURE

    def fitted_to(self, bank: Bank, context: Context) -> Tensor:
        responses, (samples, count, features) = bank.responses, bank.masks.shape
        valid, out = bank.masks[:, 1], responses.new_empty(samples, features)
        for some in sample_blocks(samples, count * features, out.device):
            removed, there = bank.masks[some], valid[some].sum(-1, keepdim=True)
            share = removed.sum(-1) / there.double()
            weights = self.draws * bank.weights[some] * self._nearness(share)
            weights[:, 0] += 1
            beside = None if bank.every else share.square() - self._slope(there) * share
            # a feature's removal says what its presence does, with the sign turned
            y = -responses[some]
            out[some] = ridge_fit(removed, y, weights, beside, self.ridge)
            if beside is not None:
                half = partial(_half_fit, removed, y, weights, beside, self.ridge)
                record_split_half(context, bank.task, count // 2 - 1, half, some)
        return out

    def _nearness(self, share: Tensor) -> Tensor:
        """How much masks weigh that remove these shares of the features."""
        return torch.exp(-((share / self.kernel_width) ** 2))

    def _slope(self, there: Tensor) -> Tensor:
        """The slope (n, 1) of d^2 on d over all masks of so many features (n, 1), weighed as in the fit."""
        removed = torch.arange(int(there.max()) + 1, device=there.device)
        share = removed / there.double()
        weights = self._nearness(share) * (removed <= there) / (there + 1)
        weights[:, 0] += 1 / self.draws
        weights /= weights.sum(-1, keepdim=True)
        apart = share - (weights * share).sum(-1, keepdim=True)
        return (weights * apart * share.square()).sum(-1, True) / (weights * apart.square()).sum(-1, True)


def _half_fit(
    removed: Tensor, responses: Tensor, weights: Tensor, beside: Tensor, ridge: float, half: int
) -> Tensor:
    """The fit of every second set and what it leaves; nothing and everything belong to both halves."""
    pair = torch.arange(removed.shape[1], device=removed.device) // 2
    own = (pair == 0) | (pair % 2 == half)
    weights = weights[:, own]
    weights[:, :2] /= 2
    return ridge_fit(removed[:, own], responses[:, own], weights, beside[:, own], ridge / 2)


def ridge_fit(
    removed: Tensor, responses: Tensor, weights: Tensor, beside: Tensor | None, ridge: float
) -> Tensor:
    """Weighted ridge regression (B, V) of responses (B, M) on masks (B, M, V).

    An intercept and the column `beside` (B, M) are left free: both drop out when everything is measured from
    its weighted fit to them.
    """
    share = weights / weights.sum(-1, keepdim=True)
    every = torch.cat([removed.double(), responses[..., None]], -1)
    if beside is not None:
        every = torch.cat([every, beside[..., None]], -1)
    every = every - share[:, None] @ every
    if beside is not None:
        column, every = every[..., -1], every[..., :-1]
        along = share * column
        slopes = along[:, None] @ every / (along * column).sum(-1)[:, None, None]
        every = every - column[..., None] * slopes
    return least_squares(every[..., :-1], every[..., -1], weights, ridge)


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
