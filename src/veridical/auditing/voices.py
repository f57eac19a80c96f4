"""Which metrics have a voice: those that see damage planted on the maps of one reference method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from veridical.auditing.effort import Effort
from veridical.auditing.panel import Judges
from veridical.auditing.verdict import Judge
from veridical.errors import VeridicalError
from veridical.meta import MetaEvaluation
from veridical.meta.planted_damage import planted_damage
from veridical.meta.result import MEAN
from veridical.meta.voices import PlantedDamage

if TYPE_CHECKING:
    from veridical.auditing.race import Race


def plant(
    race: Race, effort: Effort, seed: int, progress: bool | None
) -> tuple[PlantedDamage | None, tuple[int, ...]]:
    """Plant damage in the samples of the first look; what it said, and which removal metrics have a voice."""
    metrics = race.judges.removal
    few = race.first_look
    try:
        found = planted_damage(few, metrics, levels=effort.damage, seed=seed, progress=progress)
    except VeridicalError:
        return None, ()
    return found, tuple(i for i, label in enumerate(metrics) if label in found.heard)


def voices_of(
    judges: Judges, found: PlantedDamage | None, reliability: MetaEvaluation | None
) -> tuple[Judge, ...]:
    """Every metric with what it can see here; those that decide first."""
    out = []
    for line, metrics in (("removal", judges.removal), ("truth", judges.truth)):
        for label in metrics:
            voice = None if found is None else found.voices.get(label)
            seen = (math.nan,) * 3 if voice is None or voice.unjudged else voice.mean()
            silent = "" if line != "removal" else _silence(label, found)
            out.append(Judge(label, line, True, *seen, silent, *_meta(label, reliability)))
    out += [Judge(label, kind, False) for label, (kind, _) in judges.describing.items()]
    return tuple(out)


def _silence(label: str, found: PlantedDamage | None) -> str:
    if found is None:
        return "no damage could be planted here"
    return found.silent.get(label) or found.unjudged.get(label, "")


def _meta(label: str, reliability: MetaEvaluation | None) -> tuple[float, float]:
    if reliability is None or label not in reliability.books:
        return math.nan, math.nan
    return reliability[label, MEAN].mc, reliability.books[label].dependence.permuted
