"""Which methods lead: those whose difference from the best one may be chance."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.errors import InputError, ShapeError
from veridical.functional._rows import as_double


def leading_group(
    units: Tensor, *, level: float = 0.05, analyses: int = 1, permutations: int = 1999, seed: int = 0
) -> tuple[int, ...]:
    """Drop the worst of methods while their win rates differ by more than chance; who is left leads.

    `units` (E, E, N) holds what each method (row) wins against each other one (column) in each sample: 1,
    1/2, 0; the diagonal is not read. A member's unit in a sample is its mean over the other members, the
    statistic is the range of the mean units, and under "all alike" a sample's units could have stood in any
    order: methods are permuted within samples, `p = (1 + #{range* >= range}) / (1 + permutations)`. It is
    tested at `level / analyses`, for as many interim analyses. Those that tie for the worst leave
    together. NaN counts as a tie.

    Parameters
    ----------
    units : Tensor
        Units (E, E, N): what each method wins against each other one in each sample.
    level : float
        Level of the tests.
    analyses : int
        How many times this is called as samples grow; the level is divided by it.
    permutations : int
        Permutations of each test.
    seed : int
        Seed of the permutations.

    Returns
    -------
    tuple of int
        The methods that stayed.

    Examples
    --------
    >>> units = torch.full((2, 2, 40), 0.5)
    >>> units[0, 1], units[1, 0] = 1.0, 0.0
    >>> leading_group(units)
    (0,)
    """
    units = as_double(units, "units").nan_to_num(0.5)
    if units.dim() != 3 or units.shape[0] != units.shape[1] or 0 in units.shape:
        raise ShapeError(f"expected units (E, E, N) of E methods in N samples, got {tuple(units.shape)}")
    if not 0 < level < 1 or analyses < 1 or permutations < 1:
        raise InputError(
            "level lies between 0 and 1, analyses and permutations are at least 1; "
            f"got {level}, {analyses}, {permutations}"
        )
    kept = list(range(len(units)))
    generator = torch.Generator().manual_seed(seed)
    while len(kept) > 1:
        inside = torch.tensor(kept, device=units.device)
        own = mean_units(units[inside][:, inside])
        rates = own.mean(-1)
        p = range_p(own, permutations, generator)
        worst = rates <= rates.min() + 1e-12
        reject = p <= level / analyses and not bool(worst.all())
        if not reject:
            break
        kept = [method for method, out in zip(kept, worst.tolist(), strict=True) if not out]
    return tuple(kept)


def mean_units(units: Tensor) -> Tensor:
    """Each method's mean over the others (E, N) of its units against them (E, E, N).

    Parameters
    ----------
    units : Tensor
        Units (E, E, N).

    Returns
    -------
    Tensor
        Mean units (E, N).
    """
    count = len(units)
    others = ~torch.eye(count, dtype=torch.bool, device=units.device)
    return torch.where(others[..., None], units, 0.0).sum(1) / max(1, count - 1)


def range_p(own: Tensor, permutations: int, generator: torch.Generator) -> float:
    """How often methods shuffled within samples stand at least as far apart as they do."""
    methods, samples = own.shape
    means = own.mean(-1)
    observed = means.max() - means.min()
    beyond, left = 0, permutations
    while left:
        some = min(left, max(1, 2**21 // own.numel()))
        noise = torch.rand(some, samples, methods, generator=generator)
        order = noise.argsort(-1).to(own.device)
        shuffled = own.T.expand(some, -1, -1).gather(-1, order).mean(1)
        spread = shuffled.amax(-1) - shuffled.amin(-1)
        beyond += int((spread >= observed - 1e-12).sum())
        left -= some
    return (1 + beyond) / (1 + permutations)
