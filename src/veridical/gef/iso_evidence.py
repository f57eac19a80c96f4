"""Iso-sigma of distortions: the score at fixed noise, how sure its mean is, and the draws it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.functional import has_spread, spearman

SHUFFLES = 499
RESAMPLES = 200
TOGETHER = 2**20
"""Numbers that are correlated at once."""
SMALLEST = 5
"""Draws below which a correlation over draws says nothing."""
FARTHEST = 1 - 1e-6
"""A correlation of 1 would be infinite on Fisher's scale."""


def iso_sigma(model: Tensor, explanation: Tensor, correlation: Any = spearman) -> Tensor:
    """Correlate distortions (..., M, Z) over the draws of each level, then average over levels (Fisher z).

    A level at which the explanation does not move counts 0; one at which the model does not move, or with
    fewer than five finite draws, is left out; a sample without a level is NaN.
    """
    d_f, d_phi = model.mT, explanation.mT
    known = d_f.isfinite() & d_phi.isfinite()
    d_f, d_phi = (torch.where(known, each, 0.0) for each in (d_f, d_phi))
    kept = has_spread(d_f, known) & (known.sum(-1) >= SMALLEST)
    each = torch.where(has_spread(d_phi, known), correlation(d_f, d_phi, known), 0.0)
    z = torch.where(kept, each, 0.0).clamp(-FARTHEST, FARTHEST).atanh()
    return torch.where(kept.any(-1), (z.sum(-1) / kept.sum(-1).clamp(min=1)).tanh(), torch.nan)


@dataclass(frozen=True)
class Evidence:
    """How sure a mean iso-sigma over samples is; samples share the noisy models, so draws are the unit."""

    mean: float
    """The mean over samples."""
    p_value: float
    """How often draws shuffled within their levels give as large a mean: 0.05 if nothing is followed."""
    interval: tuple[float, float]
    """95% for the mean, draws resampled within levels."""
    error: float
    """The standard error of the mean where nothing is followed, from the shuffles."""
    draws: int
    """Noisy models at each level."""

    def power(self, effect: float = 0.2, level: float = 0.05) -> float:
        """How likely a true mean of `effect` would be told from 0 with as many draws."""
        return 1 - NormalDist().cdf(NormalDist().inv_cdf(1 - level) - effect / max(self.error, 1e-12))

    def draws_for(self, effect: float = 0.2, power: float = 0.8, level: float = 0.05) -> int:
        """How many draws per level would tell a true mean of `effect` from 0 with that power."""
        self.check(effect, power, level)
        if not math.isfinite(self.error):
            raise InputError(
                "no sample has an iso-sigma (its maps are NaN?), so no number of draws is enough"
            )
        wanted = effect / (NormalDist().inv_cdf(1 - level) + NormalDist().inv_cdf(power))
        return max(SMALLEST, math.ceil(1 + (self.draws - 1) * (self.error / wanted) ** 2))

    @staticmethod
    def check(effect: float, power: float, level: float = 0.05) -> None:
        """Refuse what no number of draws can give."""
        if not 0 < effect < 1 or not level < power < 1:
            raise InputError(f"effect is between 0 and 1, power between level and 1; got {effect}, {power}")

    def to_json(self) -> dict[str, Any]:
        """The evidence as plain data, with its power at 0.2 and the draws for 80% of it."""
        draws = self.draws_for() if math.isfinite(self.error) else None
        return {**vars(self), "power": self.power(), "draws_for_0.2": draws}


def evidence(model: Tensor, explanation: Tensor, key: Key = Key(0), correlation: Any = spearman) -> Evidence:  # noqa: B008 (frozen)
    """Test the mean iso-sigma of distortions (N, M, Z) against draws shuffled within levels.

    One shuffle serves all samples: they met the same noisy models, and are no independent witnesses.
    """
    model, explanation = model.cpu(), explanation.cpu()
    count, draws, levels = model.shape
    mean = float(iso_sigma(model, explanation, correlation).nanmean())

    def means(picks: Tensor, both: bool) -> Tensor:
        """The mean over samples for each choice of draws (turns, levels, M)."""
        out = []
        for some in picks.split(max(1, TOGETHER // model.numel())):
            own = some.mT[:, None].expand(-1, count, -1, -1)
            there = explanation.expand(len(own), -1, -1, -1).gather(2, own)
            here = model.expand_as(there)
            out.append(iso_sigma(here.gather(2, own) if both else here, there, correlation).nanmean(-1))
        return torch.cat(out)

    shuffles = keyed.permutation(key / "shuffle", torch.arange(SHUFFLES * levels), 0, draws)
    shuffled = means(shuffles.unflatten(0, (SHUFFLES, levels)), both=False)
    resamples = keyed.integers(key / "resample", torch.arange(RESAMPLES * levels), 0, draws, draws)
    resampled = means(resamples.unflatten(0, (RESAMPLES, levels)), both=True).sort().values.tolist()
    return Evidence(
        mean,
        # what is no number is larger than no shuffle, and followed by nothing
        1.0 if math.isnan(mean) else (1 + int((shuffled >= mean - 1e-12).sum())) / (1 + SHUFFLES),
        (resampled[RESAMPLES // 40], resampled[-1 - RESAMPLES // 40]),
        float(shuffled.std()),
        draws,
    )
