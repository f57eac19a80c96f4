"""Who may speak: how well each metric orders maps whose damage is known, and why others are silent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.meta.consistency import FEWEST
from veridical.meta.damage import NONE, PERMUTED
from veridical.meta.dependence import PLACELESS
from veridical.models.cost import Cost
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TIES: Mapping[Any, float] = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Scores of a sample that differ by less than this share of the largest are equal; TF32 and half: 1e-3."""


def tolerance(task: Task) -> float:
    """The share of a score that is rounding, in the precision the model answers in."""
    return TIES.get(task.predictor.rounding or task.outputs.dtype, 1e-3)


def concordance(utility: Tensor, distinct: Tensor, ties: Tensor | float = 0.0) -> Tensor:
    """Somers' D of each sample (N,): how surely scores (K, N) fall along K maps of rising damage.

    Pairs of maps in the right order less those in the wrong order, over all pairs of maps that differ
    (`distinct`, (K, K, N)). Equal and missing scores are neither right nor wrong. NaN where no maps differ or
    no map has a score.
    """
    first, second = torch.triu_indices(len(utility), len(utility), 1, device=utility.device)
    fall = utility[first] - utility[second]
    right = torch.where(fall.abs() <= ties, 0.0, fall.nan_to_num(0.0)).sign()
    counted = distinct[first, second]
    mean = (right * counted).sum(0) / counted.sum(0)
    return mean.masked_fill(utility.isnan().all(0), torch.nan)


def interval(values: Tensor, level: float) -> tuple[float, float, float]:
    """The mean of the samples that have a value, and Student's interval of it, inside [-1, 1]."""
    from scipy.special import stdtrit

    known = values[~values.isnan()].double().cpu()
    mean, count = float(known.mean()), len(known)
    if count < 2:
        return mean, math.nan, math.nan
    reach = float(stdtrit(count - 1, (1 + level) / 2) * known.std() / count**0.5)
    return mean, max(-1.0, mean - reach), min(1.0, mean + reach)


@dataclass(frozen=True, eq=False)
class Voice:
    """What one metric made of planted damage: `each` kind's concordance per sample, or why there is none."""

    metric: str
    category: str
    each: Mapping[str, Tensor]
    scores: Tensor
    """The scores (maps, N), higher is better, in the order of `PlantedDamage.steps`."""
    cost: Cost
    level: float = 0.95
    unjudged: str = ""
    """Why damage cannot be planted for this metric, or nothing."""

    def mean(self, kind: str | None = None) -> tuple[float, float, float]:
        """Concordance and the ends of its interval, with one kind of damage or with all of them."""
        if self.unjudged:
            return math.nan, math.nan, math.nan
        parts = [self.each[kind]] if kind else list(self.each.values())
        return interval(torch.stack(parts).nanmean(0), self.level)

    @property
    def reason(self) -> str:
        """Why the metric is not heard, or nothing."""
        return self.silent or self.unjudged

    @property
    def heard(self) -> bool:
        """Whether the metric sees damage on this task."""
        return not self.reason

    @property
    def silent(self) -> str:
        """Why the metric must not speak here, or nothing."""
        if self.unjudged:
            return ""
        places = self.each[PERMUTED]
        known = int((~places.isnan()).sum())
        if known < FEWEST:
            return f"it has scores of damaged maps in {known} of {len(places)} samples, {FEWEST} are needed"
        if not any(bool(found.nan_to_num(0.0).any()) for found in self.each.values()):
            return "its scores do not follow the map: no damage changes them"
        if not bool(places.nan_to_num(0.0).any()):
            return f"it {PLACELESS}"
        for kind, what in ((PERMUTED, "permuted places"), (None, "damage")):
            mean, low, high = self.mean(kind)
            told = f"concordance {mean:.2f}, {self.level:.0%} interval {low:.2f} to {high:.2f}"
            if high < 0:
                return f"it prefers maps with {what} ({told})"
            if not low > 0:
                return f"it cannot tell {what} from chance ({told})"
        return ""


@dataclass(frozen=True, eq=False, repr=False)
class PlantedDamage:
    """The voices of metrics by label; `heard`, `silent` and `unjudged`, `to_frame`, `plot`."""

    voices: Mapping[str, Voice]
    reference: str
    """The method on whose maps damage was planted."""
    steps: tuple[tuple[str, float], ...]
    """The kind and share of damage of every map; the first has none."""
    reference_cost: Cost
    counted: int
    """Samples whose reference map tells features apart, so that it can be damaged."""
    samples: int

    @property
    def heard(self) -> list[str]:
        """The metrics that see damage."""
        return [label for label, voice in self.voices.items() if voice.heard]

    @property
    def silent(self) -> dict[str, str]:
        """The metrics that do not, with the reason."""
        return {label: voice.silent for label, voice in self.voices.items() if voice.silent}

    @property
    def unjudged(self) -> dict[str, str]:
        """The metrics for which damage cannot be planted, with the reason."""
        return {label: voice.unjudged for label, voice in self.voices.items() if voice.unjudged}

    @property
    def cost(self) -> Cost:
        """Rows asked in all, for the reference maps and by every metric."""
        return sum((voice.cost for voice in self.voices.values()), self.reference_cost)

    def to_frame(self) -> pd.DataFrame:
        """One row per metric: its concordance with all damage and each kind, intervals, and the reason."""
        import pandas as pd

        rows = []
        for label, voice in self.voices.items():
            row: dict[str, Any] = {"metric": label, "category": voice.category, "heard": voice.heard}
            row |= dict(zip(("concordance", "low", "high"), voice.mean(), strict=True))
            for kind in dict.fromkeys(kind for kind, _ in self.steps if kind != NONE):
                mean, low, high = voice.mean(kind)
                row |= {kind: mean, f"{kind}_low": low, f"{kind}_high": high}
            rows.append({**row, "rows": voice.cost.forward, "reason": voice.reason})
        return pd.DataFrame(rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Concordance with permuted places and with all damage, one line per metric; grey ones are silent."""
        from veridical.meta.plots import plot_voices

        return plot_voices(self, ax)

    def __repr__(self) -> str:
        head = (
            f"PlantedDamage on {self.reference}: {len(self.heard)} of {len(self.voices)} metrics are heard; "
            f"{len(self.steps)} maps of {self.samples} samples, {self.cost}"
        )
        shown = ["metric", "heard", "concordance", "low", "high", PERMUTED, "permuted_low", "reason"]
        left = self.samples - self.counted
        note = [f"left out: {left} samples whose reference map is constant or missing"] * bool(left)
        return "\n".join([head, self.to_frame()[shown].round(3).to_string(index=False), *note])
