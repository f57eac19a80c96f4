"""How likely each method is the best one: shrunken contrasts of mean units, and their posterior."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from veridical.errors import InputError, ShapeError
from veridical.functional._rows import as_double

SCALE = 0.05
"""Win rates of good methods differ by about this much: the half-Cauchy prior's median."""
SCALES, COVARIANCES = 200, 32


def best_probability(
    units: Tensor,
    groups: Sequence[Sequence[int]] | None = None,
    *,
    scale: float = SCALE,
    draws: int = 20_000,
    seed: int = 0,
) -> Tensor:
    """Give the probability that each method (or a member of each group) has the highest true win rate.

    `units` (E, N): each method's mean unit in each sample. Contrasts of the mean units are normal around the
    true ones with the covariance of their mean over samples, times `(N - 1) / chi2_(N-1)` for not knowing
    it; the true contrasts are normal around 0 with a standard deviation t, and t ~ half-Cauchy(`scale`); t
    and the chi-squared are integrated out on a grid, the contrasts by seeded draws. Contrasts in the basis
    where the covariance is diagonal shrink by `t^2 / (t^2 + variance)` each. Methods that never differ share
    their probability. NaN with fewer than two methods or samples: one candidate has no rival.

    Parameters
    ----------
    units : Tensor
        Mean units (E, N) of each method in each sample.
    groups : sequence of sequences of int, optional
        Methods whose chances are added up; by default each alone.
    scale : float
        Scale of the half-Cauchy prior of differences.
    draws : int
        Seeded draws of the contrasts.
    seed : int
        Seed of the draws.

    Returns
    -------
    Tensor
        A probability for each method or group.

    Examples
    --------
    >>> alike = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(1, 32)
    >>> best_probability(alike).tolist()
    [0.5, 0.5]
    """
    units = as_double(units, "units")
    if units.dim() != 2 or 0 in units.shape:
        raise ShapeError(f"expected units (E, N) of E methods in N samples, got {tuple(units.shape)}")
    if bool(units.isnan().any()) or not scale > 0 or draws < 1:
        raise InputError("units must be numbers, scale above 0 and draws at least 1; a tie is 1/2, not NaN")
    methods, samples = units.shape
    groups = [[method] for method in range(methods)] if groups is None else groups
    members = sorted(method for group in groups for method in group)
    if members != list(range(methods)):
        raise InputError(
            f"every method 0..{methods - 1} stands in one group, got {[list(g) for g in groups]}"
        )
    if methods < 2 or samples < 2:
        return units.new_full((len(groups),), torch.nan)
    centred = units - units.mean(0)
    found, axes = torch.linalg.eigh(centred.cov() / samples)
    variance, shift = found.clamp(min=0.0), axes.T @ centred.mean(1)
    # the direction in which all move together, and those in which nothing moves, are no contrasts
    real = variance > 1e-15
    variance, shift, axes = variance[real], shift[real], axes[:, real]
    certain = centred.mean(1) - axes @ shift  # where samples never differ there is no doubt
    truth = _true_contrasts(shift, variance, samples, scale, draws, seed) @ axes.T + certain
    truth = (truth * 1e9).round()  # methods that never differ tie
    first = (truth == truth.amax(1, keepdim=True)).double()
    best = (first / first.sum(1, keepdim=True)).mean(0)
    return torch.stack([best[list(group)].sum() for group in groups])


def _true_contrasts(
    shift: Tensor, variance: Tensor, samples: int, scale: float, draws: int, seed: int
) -> Tensor:
    """Posterior draws (draws, contrasts) along axes in which estimates are independent."""
    middle = (torch.arange(SCALES, dtype=torch.float64) + 0.5) / SCALES
    spread = scale * torch.tan(middle * torch.pi / 2)  # equal shares of the half-Cauchy
    inflate = _chi_squared_factors(samples - 1)
    doubt = inflate[:, None] * variance.cpu()  # (C, D)
    total = spread.square()[:, None, None] + doubt  # (T, C, D)
    fit = -0.5 * (total.log() + shift.cpu().square() / total).sum(-1)
    share = (fit - fit.max()).exp().flatten()
    edges = (share / share.sum()).cumsum(0)
    pairs = (draws + 1) // 2
    places = (torch.arange(pairs, dtype=torch.float64) + 0.5) / pairs
    chosen = torch.searchsorted(edges, places).clamp(max=len(edges) - 1)
    prior = spread.square()[chosen // COVARIANCES][:, None]
    doubt = doubt[chosen % COVARIANCES]
    keep = prior / (prior + doubt)
    generator = torch.Generator().manual_seed(seed)
    noise = (keep * doubt).sqrt() * torch.randn(pairs, len(shift), generator=generator, dtype=torch.float64)
    # every draw with its mirror image: two methods alike get 1/2 each, exactly
    return torch.cat([keep * shift.cpu() + noise, keep * shift.cpu() - noise]).to(shift.device)


def _chi_squared_factors(freedom: int) -> Tensor:
    """`freedom / chi2` at the middles of equal shares of the chi-squared law (Wilson and Hilferty 1931)."""
    middle = (torch.arange(COVARIANCES, dtype=torch.float64) + 0.5) / COVARIANCES
    normal = torch.special.ndtri(middle)
    unit = 2.0 / (9.0 * freedom)
    return (1 - unit + normal * unit**0.5).clamp(min=1e-3).pow(-3)
