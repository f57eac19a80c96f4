"""Which dictionary metric can be trusted: the table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.dictionaries.controls import RANDOM
from veridical.dictionaries.statistics import agreement, concordance, separation, smallest_difference
from veridical.meta.consistency import consistencies
from veridical.values.scores import Direction

if TYPE_CHECKING:
    import pandas as pd

CHAINS = (
    ("true atoms", "trained", "25% random", "50% random", "75% random"),
    ("trained", "1/4 steps", "1/16 steps"),
)
"""Entries whose order is known, the best first."""
LEVEL, FIRM = 0.05, 0.5
"""A metric separates at this p-value, and follows truth from this rank correlation on."""


@dataclass(frozen=True, eq=False, repr=False)
class Trust:
    """Readings of dictionary metrics, and what they say about the metrics.

    `values[metric][entry]` (seeds, parts) are the readings, `truth[measure][entry]` (seeds,) the truth where
    it is known, `refused` names metrics that do not apply here, with why.
    """

    values: Mapping[str, Mapping[str, Tensor]]
    truth: Mapping[str, Mapping[str, Tensor]]
    directions: Mapping[str, Direction]
    entries: tuple[str, ...]
    shaken: tuple[str, ...]
    refused: Mapping[str, str]
    about: Mapping[str, Any]

    def oriented(self, metric: str) -> dict[str, Tensor]:
        """Readings (seeds, parts) of every entry, turned so that more is better."""
        sign = 1.0 if self.directions[metric] is Direction.HIGHER else -1.0
        return {entry: sign * self.values[metric][entry] for entry in self.entries}

    @property
    def controls(self) -> tuple[str, ...]:
        """Random controls among the entries."""
        return tuple(name for name in self.entries if name in RANDOM)

    def row(self, metric: str) -> dict[str, Any]:
        """Everything about one metric: a row of the table."""
        each = self.oriented(metric)
        mean = {entry: value.nanmean(1) for entry, value in each.items()}
        own, sign = mean["trained"], 1.0 if self.directions[metric] is Direction.HIGHER else -1.0
        tests = {name: separation(own, mean[name]) for name in self.controls}
        hardest = max(self.controls, key=lambda name: float(mean[name].mean()), default=None)
        smallest = smallest_difference(each["trained"])
        resolvable = smallest > 1e-9 * float(own.abs().max())
        gap = float(own.mean() - mean[hardest].mean()) if hardest else math.nan
        rank = self.follows(metric)
        out: dict[str, Any] = {
            "metric": metric,
            "better": "higher" if sign > 0 else "lower",
            "trained": sign * float(own.mean()),
            "best random": hardest,
            "its value": sign * float(mean[hardest].mean()) if hardest else math.nan,
            "p": max((p for _, p in tests.values()), default=math.nan),
            "not separated from": ", ".join(name for name, (_, p) in tests.items() if not p <= LEVEL),
            "smallest difference": smallest,
            "steps": gap / smallest if resolvable else math.nan,
            "order": concordance(mean, CHAINS),
            "rank with truth": rank[0],
            "low": rank[1],
            "high": rank[2],
            "consistency": self.consistency(metric),
        }
        return out | {"verdict": verdict(out, bool(self.truth))}

    def follows(self, metric: str) -> tuple[float, float, float]:
        """Rank correlation with MCC above chance over the entries, and its interval."""
        if not self.truth:
            return math.nan, math.nan, math.nan
        mean = self.oriented(metric)
        return agreement(
            torch.stack([mean[entry].nanmean() for entry in self.entries]),
            torch.stack([self.truth["mcc"][entry].mean() for entry in self.entries]),
        )

    def consistency(self, metric: str) -> float:
        """MetaQuantus's meta-consistency: it stays under slight noise, and worsens without half the atoms.

        Noise is on the weights; parts of the samples are its samples, some entries its explainers.
        """
        held = self.values[metric]
        if not self.shaken:
            return math.nan
        base = torch.stack([held[name][0] for name in self.shaken])
        near, far = (
            torch.stack([held[f"{how} {name}"] for name in self.shaken], 1) for how in ("near", "far")
        )
        kept = torch.ones(len(near), base.shape[1], dtype=torch.bool)
        return float(consistencies(base, near, far, kept, kept, self.directions[metric]).mc)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per metric, those that can be trusted first."""
        import pandas as pd

        rows = [self.row(metric) for metric in self.values]
        order = {"use": 0, "separates only": 1, "follows truth only": 2, "do not use": 3}
        rows.sort(key=lambda row: (order.get(row["verdict"], 9), -_or(row["rank with truth"], -2)))
        return pd.DataFrame(rows)

    def to_frame(self) -> pd.DataFrame:
        """Every reading: one row per metric, entry, seed and part."""
        import pandas as pd

        rows = [
            {"metric": metric, "entry": entry, "seed": seed, "part": part, "value": float(value)}
            for metric, each in self.values.items()
            for entry in self.entries
            for seed, parts in enumerate(each[entry])
            for part, value in enumerate(parts)
        ]
        return pd.DataFrame(rows)

    def means(self) -> pd.DataFrame:
        """Every metric, and truth where it is known, on every entry: means over seeds and parts."""
        import pandas as pd

        known = {f"truth: {n}": {e: float(v[e].mean()) for e in self.entries} for n, v in self.truth.items()}
        read = {n: {e: float(v[e].nanmean()) for e in self.entries} for n, v in self.values.items()}
        return pd.DataFrame({**known, **read}).loc[list(self.entries)]

    def save(self, folder: str | Path) -> Path:
        """Write the table, the means, all readings (.csv) and the settings (.json)."""
        from veridical.values.sealed import put
        from veridical.values.table_files import write_csv

        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        write_csv(self.table, place / "trust.csv")
        write_csv(self.means().reset_index(names="entry"), place / "means.csv")
        write_csv(self.to_frame(), place / "readings.csv")
        put(
            place / "about.json",
            json.dumps({**self.about, "refused": dict(self.refused)}, indent=1),
            private=False,
        )
        return place

    def __repr__(self) -> str:
        good = [row["metric"] for _, row in self.table.iterrows() if row["verdict"] == "use"]
        return f"Trust in {len(self.values)} dictionary metrics: use {', '.join(good) or 'none'}"


def verdict(row: Mapping[str, Any], truth: bool) -> str:
    """What to do with a metric: it must tell trained from every random control, and follow truth if known.

    The test over seeds has these samples in common, so the gap must exceed what other samples may change too.
    """
    separates = row["p"] <= LEVEL and not row["steps"] < 1
    if not truth:
        return "separates only" if separates else "do not use"
    follows = row["rank with truth"] >= FIRM and row["low"] > 0
    if separates and follows:
        return "use"
    return "separates only" if separates else "follows truth only" if follows else "do not use"


def _or(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value
