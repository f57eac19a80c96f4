"""Do concepts and importances stay the same from one seed to the next?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.errors import InputError
from veridical.functional import pearson


@dataclass(frozen=True)
class Stability:
    """How alike fits with different seeds are: 1 is the same, whatever the order of concepts.

    `concepts` is the mean cosine of each concept to its nearest one in the other fit, both ways;
    `importances` correlates their importances. Both are means over pairs of fits.
    """

    concepts: float
    importances: float


def stability(fits: Sequence[Concepts]) -> Stability | None:
    """Compare fits in pairs; None for fewer than two."""
    if len(fits) < 2:
        return None
    shapes = {(len(fit.vectors), fit.n_outputs, fit.vectors.shape[-1]) for fit in fits}
    if len(shapes) > 1:
        raise InputError(f"fits of one method and head are compared, these have shapes {sorted(shapes)}")
    found = [_alike(a, b) for one, other in combinations(fits, 2) for a, b in ((one, other), (other, one))]
    cosines, importances = torch.tensor(found, dtype=torch.float64).T
    return Stability(float(cosines.mean()), float(importances.nanmean()))


def _alike(one: Concepts, other: Concepts) -> tuple[float, float]:
    """The mean cosine of concepts to their nearest, and the correlation of importances over the matches."""
    unit, near = (torch.nn.functional.normalize(c.vectors, dim=-1) for c in (one, other))
    cosine = unit @ near.mT
    cosine = cosine.masked_fill(~other.present[:, None], 0.0)
    size, at = cosine.abs().max(-1)
    sign = cosine.gather(-1, at[..., None]).squeeze(-1).sign()
    mine, theirs = _matched(one, other, at, sign)
    return float(size[one.present].mean()), float(pearson(mine[None], theirs[None])[0])


def _matched(one: Concepts, other: Concepts, at: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """Importances of concepts, and of their matches turned the same way, for all outputs in a row."""
    there = one.present.expand_as(one.importances)
    theirs = other.importances.gather(1, at.expand_as(one.importances)) * sign
    return one.importances[there], theirs[there]
