"""Evidence that a mean lies above one half, as the winnings of a bet that is fair if it does not."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.errors import InputError

from ._rows import align

STAKES = (0.25, 0.5, 0.75, 0.95)
"""Shares of its wealth that each of four gamblers stakes on every unit; each starts with a quarter.

Fixed in advance, so nothing is tuned on the data. At a win rate of .75 small stakes grow best, at one near 1
large ones; the four together lose at most a factor 4 against the best of them.
"""


def betting_wealth(units: Tensor, where: Tensor | None = None) -> Tensor:
    """Give the wealth after each unit of a gambler who starts with 1 and bets that units exceed 1/2.

    Units lie in [0, 1] (loss 0, tie 1/2, win 1): `W_t = mean_s prod_(i <= t) (1 + s (2 u_i - 1))` over fixed
    stakes s. If the mean unit is at most 1/2, given those before it, no bet gains on average, whatever the
    shape of the units: `W` is a non-negative supermartingale (Waudby-Smith and Ramdas 2024). Units are taken
    in the order given, which must be fixed before they are seen (the order of a task's keyed draw of
    samples); the last wealth does not depend on it. NaN and masked units are absent: wealth stays.

    >>> betting_wealth(torch.tensor([1.0, 0.5])).tolist()
    [1.6125, 1.6125]
    """
    return _log_wealth(units, where).exp()


def betting_p(units: Tensor, where: Tensor | None = None) -> Tensor:
    """Give the p-value of H0 "the mean unit is at most 1/2" for each row (..., N) of units in [0, 1].

    `p = 1 / max_t W_t`, at most 1 (Ville 1939): wealth ever reaches 1/a with probability at most a under H0.
    So it holds however often one looks and whenever one stops, as long as units are only added behind those
    already seen. A row without units has p = 1.

    >>> round(betting_p(torch.ones(8)).item(), 4)
    0.0122
    """
    path = _log_wealth(units, where)
    start = path.new_zeros((*path.shape[:-1], 1))
    return torch.cat([start, path], -1).amax(-1).neg().exp()


def _log_wealth(units: Tensor, where: Tensor | None) -> Tensor:
    units, valid = align(where, units=units)
    here = valid & ~units.isnan()
    if bool((here & ((units < 0) | (units > 1))).any()):
        seen = units[here]
        raise InputError(f"units lie in [0, 1], got values from {float(seen.min())} to {float(seen.max())}")
    gain = torch.where(here, 2 * units - 1, 0.0)
    # in logarithms: 2,000 wins in a row are more than a float holds
    each = torch.stack([torch.log1p(stake * gain).cumsum(-1) for stake in STAKES])
    return torch.logsumexp(each, 0) - torch.log(each.new_tensor(float(len(STAKES))))
