"""What a measure says about one concept explanation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from veridical.errors import unknown_name
from veridical.values.scores import Direction, Scores

if TYPE_CHECKING:
    import pandas as pd

HIGHER = {"top1", "rank", "attributes"}
"""Measures where more is better; all others are errors."""

LABELS = {
    "top1": "Top-1 (%)",
    "rank": "Rank corr",
    "norm_l1": "Norm L1",
    "mae": "SURF_MAE",
    "emd": "SURF_EMD",
    "rmse": "RMSE",
    "attributes": "Attributes (%)",
    "normalised_accuracy": "C-SHAP acc",
    "parameters": "Params",
    "flops": "FLOPs",
}


@dataclass(frozen=True, eq=False, repr=False)
class Judgement:
    """One value per sample of every measure, and facts of the explanation as a whole.

    `judgement.mae`, `.emd`, ... are means; `judgement.scores("mae")` gives the values of the samples.
    """

    method: str
    measure: str
    values: Mapping[str, Tensor]
    ids: Tensor
    chance: float
    facts: Mapping[str, float] = field(default_factory=dict)
    flags: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def scores(self, name: str) -> Scores:
        """The values of one measure as scores; `rmse` has none per sample (`squared` has)."""
        if name not in self.values:
            raise unknown_name("measure", name, self.values)
        values = self.values[name]
        return Scores(
            values,
            Direction.HIGHER if name in HIGHER else Direction.LOWER,
            f"{self.measure.lower()}_{name}",
            self.ids,
            self.method,
            {"undefined: no spread over outputs, or a logit of 0": values.isnan()},
        )

    @property
    def summary(self) -> dict[str, float]:
        """The mean of every measure, and the facts."""
        hidden = ("squared", "model_right", "surrogate_right")
        out = {name: float(v.nanmean()) for name, v in self.values.items() if name not in hidden}
        out["rmse"] = math.sqrt(float(self.values["squared"].mean()))
        if "model_right" in self.values:
            model = float(self.values["model_right"].mean()) - self.chance
            surrogate = float(self.values["surrogate_right"].mean()) - self.chance
            out["normalised_accuracy"] = surrogate / model if model else math.nan
        return {**out, **self.facts}

    def __getattr__(self, name: str) -> float:
        if name.startswith("_"):
            raise AttributeError(name)
        summary = self.summary
        if name not in summary:
            raise AttributeError(f"this judgement has no '{name}'; it has {', '.join(summary)}")
        return summary[name]

    def to_frame(self) -> pd.DataFrame:
        """One row per sample."""
        import pandas as pd

        columns = {name: values.cpu().numpy() for name, values in self.values.items()}
        return pd.DataFrame({"id": self.ids.cpu().numpy(), "method": self.method, **columns})

    def __repr__(self) -> str:
        summary = self.summary
        parts = [f"{LABELS[n]} {shown(n, summary[n])}" for n in LABELS if n in summary]
        flagged = f"; {len(self.flags)} outputs without concepts" if self.flags else ""
        return f"{self.measure} of {self.method} over {len(self.ids)} samples: {', '.join(parts)}{flagged}"


def shown(name: str, value: float) -> str:
    """A number as the paper's tables print it."""
    if math.isnan(value):
        return "-"
    if name in ("top1", "attributes"):
        return f"{100 * value:.1f}"
    if name in ("flops", "parameters"):
        for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
            if value >= size:
                return f"{value / size:.0f}{letter}"
        return f"{value:.0f}"
    return f"{value:.3f}" if name in ("emd", "rank") else f"{value:.4g}"
