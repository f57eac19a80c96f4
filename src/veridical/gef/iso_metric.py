"""Iso-sigma GEF: does the explanation follow the function, and not only the noise level?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch

from veridical.core.allowed import MANY, Within
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers import as_explainer
from veridical.functional import has_spread, pearson, spearman
from veridical.gef.found import Found
from veridical.gef.iso_evidence import SMALLEST, Evidence, evidence, iso_sigma
from veridical.gef.metric import GEF
from veridical.gef.noise_path import NoisePath
from veridical.metrics.base import Outcome, register
from veridical.values.task import Task

PILOT = 10
"""Draws from which the number of draws is estimated."""


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
        each = zip(model.split(1, -1), explanation.split(1, -1), strict=True)
        by_level = torch.stack([iso_sigma(m, e, own) for m, e in each], 1)
        flags = {
            **plain.flags,
            "the explanation does not move": ~has_spread(explanation.mT.nan_to_num()).any(-1),
            "too few draws at every level": values.isnan() & ~plain.values.isnan(),
        }
        details = {**plain.details, "q": plain.values, "by_level": by_level}
        sure = evidence(model, explanation, Key(0) / self.name, own)
        return Outcome(values, flags, plain.curve, details, {**plain.notes, "iso_sigma": sure.to_json()})


def with_draws_for(
    task: Task,
    explainer: Any,
    effect: float = 0.2,
    power: float = 0.8,
    metric: IsoSigma = IsoSigma(),  # noqa: B008 (frozen)
    seed: int = 0,
) -> IsoSigma:
    """Choose the draws: this metric with as many as tell a mean of `effect` from 0 with that power.

    Estimated from ten draws of the explainer on this task, which the score will share: what is read from them
    is how far shuffled draws scatter, not how far the explanation follows.
    """
    Evidence.check(effect, power)
    few = replace(metric, draws=PILOT)(task, as_explainer(explainer), Key(seed))
    found = {k: v for k, v in few.provenance["iso_sigma"].items() if k in Evidence.__dataclass_fields__}
    return replace(metric, draws=Evidence(**found).draws_for(effect, power))
