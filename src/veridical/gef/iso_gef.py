"""Iso-sigma GEF: does the explanation follow the function, and not only the noise level?

The score at fixed noise, how sure its mean is, and the draws it takes; and what scores of several shards or
seeds carry together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import MANY, Between, Within
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.explainers import as_explainer
from veridical.functional import has_spread, spearman
from veridical.gef.forms import Form
from veridical.gef.metric import CORRELATIONS, GEF, Distortions
from veridical.gef.noise_path import NoisePath
from veridical.metrics.base import Outcome, register
from veridical.values.scores import BY_DRAW, Scores, joined
from veridical.values.task import Task

SHUFFLES = 499
RESAMPLES = 200
TOGETHER = 2**20
"""Numbers that are correlated at once."""
MIN_DRAWS = 5
"""Draws below which a correlation over draws says nothing."""
FARTHEST = 1 - 1e-6
"""A correlation of 1 would be infinite on Fisher's scale."""
PILOT = 10
"""Draws from which the number of draws is estimated."""


def iso_sigma(model: Tensor, explanation: Tensor, correlation: Any = spearman) -> Tensor:
    """Correlate distortions (..., M, Z) over the draws of each level, then average over levels (Fisher z).

    A level at which the explanation does not move counts 0; one at which the model does not move, or with
    fewer than five finite draws, is left out; a sample without a level is NaN.
    """
    d_f, d_phi = model.mT, explanation.mT
    known = d_f.isfinite() & d_phi.isfinite()
    d_f, d_phi = (torch.where(known, each, 0.0) for each in (d_f, d_phi))
    kept = has_spread(d_f, known) & (known.sum(-1) >= MIN_DRAWS)
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

    @checked
    def draws_for(self, effect: Between = 0.2, power: Between = 0.8, level: Between = 0.05) -> int:
        """How many draws per level would tell a true mean of `effect` from 0 with that power."""
        if power <= level:
            raise InputError(f"power is between level and 1, got {power} at level {level}")
        if not math.isfinite(self.error):
            raise InputError(
                "no sample has an iso-sigma (its maps are NaN?), so no number of draws is enough"
            )
        wanted = effect / (NormalDist().inv_cdf(1 - level) + NormalDist().inv_cdf(power))
        return max(MIN_DRAWS, math.ceil(1 + (self.draws - 1) * (self.error / wanted) ** 2))

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


@register
@dataclass(frozen=True)
class IsoSigma(GEF):
    """GEF at fixed noise: rank correlation, over noisy models of one level, of how far model and map moved.

    Every other form is dominated by the noise level, with which both distances grow. Here a map that only
    follows the level scores 0. The provenance holds what is sure about the mean (`iso_sigma`): a p-value,
    an interval by draws, and the draws it would take to see a correlation of 0.2.
    """

    form: Form = "fast"
    """How the explanation's movement is measured."""
    draws: Annotated[int, Within(MIN_DRAWS, MANY)] = 20
    """Noisy models at each level, M; fewer than 20 see little."""
    name: ClassVar[str] = "gef_iso"
    forms: ClassVar[tuple[str, ...]] = ("fast", *GEF.forms)
    keyed_as: ClassVar[str] = ""
    version: ClassVar[int] = 3
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

    def _levels(self, path: NoisePath, draw: int) -> tuple[float, ...]:
        return path.levels  # draws are compared with each other, at equal noise

    def _outcome(self, path: NoisePath, found: Distortions) -> Outcome:
        plain = super()._outcome(path, found)
        own = self.correlate
        model, explanation = (plain.details[f"{what}_distortion"] for what in ("model", "explanation"))
        values = iso_sigma(model, explanation, own)
        each = zip(model.split(1, -1), explanation.split(1, -1), strict=True)
        by_level = torch.stack([iso_sigma(m, e, own) for m, e in each], 1)
        flags = {
            **plain.flags,
            "the explanation does not move": ~(explanation.nan_to_num() > 0).any(-1).any(-1),
            "too few draws at every level": values.isnan() & ~plain.values.isnan(),
        }
        details = {**plain.details, "q": plain.values, "by_level": by_level}
        del details[BY_DRAW]  # of q; this score is one correlation over all draws
        sure = evidence(model, explanation, Key(0) / self.name, own)
        return Outcome(values, flags, plain.curve, details, {**plain.notes, "iso_sigma": sure.to_json()})


@checked
def with_draws_for(
    task: Task,
    explainer: Any,
    effect: Between = 0.2,
    power: Between = 0.8,
    metric: IsoSigma = IsoSigma(),  # noqa: B008 (frozen)
    seed: int = 0,
) -> IsoSigma:
    """Choose the draws: this metric with as many as tell a mean of `effect` from 0 with that power.

    Estimated from ten draws of the explainer on this task, which the score will share: what is read from them
    is how far shuffled draws scatter, not how far the explanation follows.
    """
    few = replace(metric, draws=PILOT)(task, as_explainer(explainer), Key(seed))
    found = {k: v for k, v in few.provenance["iso_sigma"].items() if k in Evidence.__dataclass_fields__}
    return replace(metric, draws=Evidence(**found).draws_for(effect, power))


def joined_scores(parts: Sequence[Scores]) -> Scores:
    """The scores of parts that follow each other as one, with what GEF says of all of them."""
    found = joined(parts)
    if len(parts) == 1:
        return found
    return replace(found, provenance=joined_provenance(parts, found.details))


def joined_provenance(parts: Sequence[Scores], details: Mapping[str, Tensor]) -> dict[str, Any]:
    """The provenance of the first part, with what GEF said of one part alone said again of all.

    The perturbation log is that of a part that is not whole, if there is one, with the most models dropped.
    The evidence of iso-sigma is found again from the joined `details`; without them it is left out.
    """
    out = dict(parts[0].provenance)
    logs = [own for part in parts if (own := part.provenance.get("perturbation_log"))]
    if logs:
        least = min(logs, key=lambda own: bool(own.get("whole", True)))
        most = max(own["models_dropped"] for own in logs)
        out["perturbation_log"] = {**least, "models_dropped": most}
    if out.pop("iso_sigma", None) is not None and "model_distortion" in details:
        kind = CORRELATIONS.get(out.get("metric", {}).get("correlation"), spearman)
        model, explanation = (details[f"{what}_distortion"] for what in ("model", "explanation"))
        out["iso_sigma"] = evidence(model, explanation, Key(0) / IsoSigma.name, kind).to_json()
    return out
