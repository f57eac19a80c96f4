"""Iso-sigma GEF: does the explanation follow the function, and not only the noise level?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from veridical.allowed import MANY, Within
from veridical.errors import InputError
from veridical.functional import has_spread, pearson, spearman
from veridical.gef.distortion import Found
from veridical.gef.metric import GEF
from veridical.gef.path import NoisePath
from veridical.metrics.base import Outcome, register
from veridical.random import keyed
from veridical.random.keyed import Key

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
        """The draws a level at which a true mean of `effect` would be told from 0 so often."""
        if not 0 < effect < 1 or not level < power < 1:
            raise InputError(f"effect is between 0 and 1, power between level and 1; got {effect}, {power}")
        wanted = effect / (NormalDist().inv_cdf(1 - level) + NormalDist().inv_cdf(power))
        return max(SMALLEST, math.ceil(1 + (self.draws - 1) * (self.error / wanted) ** 2))

    def to_json(self) -> dict[str, Any]:
        """The evidence as plain data, with its power at 0.2 and the draws for 80% of it."""
        return {**vars(self), "power": self.power(), "draws_for_0.2": self.draws_for()}


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
        (1 + int((shuffled >= mean - 1e-12).sum())) / (1 + SHUFFLES),
        (resampled[RESAMPLES // 40], resampled[-1 - RESAMPLES // 40]),
        float(shuffled.std()),
        draws,
    )


@register
@dataclass(frozen=True)
class IsoSigma(GEF):
    """GEF at fixed noise: rank correlation, over noisy models of one level, of how far model and map moved.

    Every other form is dominated by the noise level, with which both distances grow. Here a map that only
    follows the level scores 0. The provenance holds what is sure about the mean (`iso_sigma`): a p-value,
    an interval by draws, and the draws it would take to see a correlation of 0.2.
    """

    draws: Annotated[int, Within(SMALLEST, MANY)] = 20
    """Noisy models at each level, M; fewer than 20 see little."""
    name: ClassVar[str] = "gef_iso"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "At one level of noise: does the map move more where the model moves more?"
    assumes: ClassVar[str] = (
        "of two equally noisy models, the one that moved further has moved the map further"
    )
    misleads: ClassVar[str] = (
        "with few draws, where it sees little, and at strong noise, where it fades; maps that follow the "
        "outputs and know no feature score high"
    )
    paper: ClassVar[str] = "ours; GEF at fixed sigma"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mean_then_correlate:
            raise InputError("iso-sigma correlates over draws; mean_then_correlate would average them first")

    def _outcome(self, path: NoisePath, found: Found) -> Outcome:
        plain = super()._outcome(path, found)
        own = spearman if self.correlation == "spearman" else pearson
        model, explanation = (plain.details[f"{what}_distortion"] for what in ("model", "explanation"))
        values = iso_sigma(model, explanation, own)
        by_level = torch.cat([iso_sigma(m, e, own)[:, None] for m, e in _levels(model, explanation)], 1)
        flags = {
            **plain.flags,
            "the explanation does not move": ~has_spread(explanation.mT.nan_to_num()).any(-1),
            "too few draws at every level": values.isnan() & ~plain.values.isnan(),
        }
        details = {**plain.details, "q": plain.values, "by_level": by_level}
        sure = evidence(model, explanation, Key(0) / self.name, own)
        return Outcome(values, flags, plain.curve, details, {**plain.notes, "iso_sigma": sure.to_json()})


def _levels(model: Tensor, explanation: Tensor) -> zip[tuple[Tensor, Tensor]]:
    """Each level alone."""
    return zip(model.split(1, -1), explanation.split(1, -1), strict=True)
