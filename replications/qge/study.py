"""The paper's own study: agreement inside strata of quality, distributions, plain data and pictures.

The package's `exhaustive_study` and `sampled_study` give tau and rho over all rankings of an input; figures
3, 4 and 6 and the tables' strata need more of the same scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

import veridical as vd
from veridical.api import as_explanation
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.functional import average_ranks, kendall_tau_b, pearson
from veridical.models.cost import Cost
from veridical.plots import COLOURS, axes
from veridical.qge.kept_features import KeptFeatures
from veridical.qge.study import (
    RankingStudy,
    partner_key,
    rankings_of,
    sampled_rankings,
    transforms_of,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

STRATA = (0.5, 1.0, 1.5, 2.0, 2.5)
"""Lower edges of the strata, in standard deviations of q above its mean; the last one is open."""
STRATUM_NAMES = (*(f"[{low:g}, {high:g})" for low, high in pairwise(STRATA)), f">= {STRATA[-1]:g}")
_AGREEMENT = ("tau", "rho", "stratum_tau", "spread")
_HISTOGRAMS = ("quality_histogram", "gap_histogram")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PaperStudy(RankingStudy):
    """A ranking study with what the figures need.

    `stratum_tau` (inputs, strata, 1 + K) is tau among the rankings of each stratum of q; histograms are
    (edges, density), one row per input.
    """

    stratum_tau: Tensor
    quality_histogram: tuple[Tensor, Tensor]
    gap_histogram: tuple[Tensor, Tensor]

    def strata_frame(self) -> pd.DataFrame:
        """One row an (input, stratum, transform)."""
        import pandas as pd

        rows = [
            {
                "id": int(self.ids[i]),
                "stratum": low,
                "transform": name,
                "tau": float(self.stratum_tau[i, s, t]),
            }
            for i in range(len(self))
            for s, low in enumerate(STRATA)
            for t, name in enumerate(self.transforms)
        ]
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """The study as plain data: its pictures can be drawn later, and elsewhere."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors = {name: value.tolist() for name, value in plain.items() if isinstance(value, Tensor)}
        histograms = {name: [part.tolist() for part in plain[name]] for name in _HISTOGRAMS}
        return {**plain, **tensors, **histograms, "cost": [self.cost.forward, self.cost.backward]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The study that `to_json` described."""
        numbers = {n: torch.tensor(data[n], dtype=torch.float64) for n in _AGREEMENT}
        histograms = {
            n: tuple(torch.tensor(part, dtype=torch.float64) for part in data[n]) for n in _HISTOGRAMS
        }
        return cls(
            **{**data, **numbers, **histograms, "ids": torch.tensor(data["ids"]), "cost": Cost(*data["cost"])}
        )

    def plot(self, ax: Axes | None = None, rho: bool = False, stratum: int | None = None) -> Axes:
        """Draw tau (or rho) over K beside that of QGE: figure 2 (5), or 3 among a stratum of quality."""
        if stratum is None:
            return super().plot(ax, rho)
        if rho or not 0 <= stratum < len(STRATA):
            raise InputError(
                f"a stratum is 0 to {len(STRATA) - 1} and has a tau only, got {stratum}, rho={rho}"
            )
        plain = {f.name: getattr(self, f.name) for f in fields(RankingStudy)}
        return RankingStudy(**{**plain, "tau": self.stratum_tau[:, stratum]}).plot(ax)

    def plot_strata(self, ax: Axes | None = None, draws: int = 1) -> Axes:
        """Draw tau over the strata of quality: figure 3 at a glance."""
        if not 1 <= draws < self.tau.shape[1]:
            raise InputError(f"the study holds QRAND_1 to QRAND_{self.tau.shape[1] - 1}, not QRAND_{draws}")
        ax = axes(ax)
        for column, label, colour in ((0, "QGE", COLOURS[1]), (draws, f"QRAND$_{{{draws}}}$", COLOURS[0])):
            table = self.stratum_tau[:, :, column].cpu()
            mean = table.nanmean(0)
            std = ((table - mean) ** 2).nanmean(0).sqrt()
            ax.fill_between(STRATA, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
            ax.plot(STRATA, mean, color=colour, marker="o", label=label)
        ax.set_xticks(STRATA, STRATUM_NAMES, fontsize=7)
        ax.set_xlabel("standard deviations of q above its mean")
        ax.set_ylabel("Kendall's tau with q")
        ax.legend(fontsize=8)
        return ax

    def plot_distribution(self, ax: Axes | None = None, of: str = "gap") -> Axes:
        """Draw the density of QGE or of q over the rankings of each input: figures 4 and 6."""
        if of not in ("gap", "quality"):
            raise InputError(f"of is 'gap' or 'quality', got {of!r}")
        ax = axes(ax)
        edges, density = self.gap_histogram if of == "gap" else self.quality_histogram
        for i in range(len(self)):
            colour = COLOURS[i % len(COLOURS)]
            ax.stairs(density[i], edges[i], color=colour, label=f"input {int(self.ids[i])}")
        if of == "gap":
            ax.axvline(0, color="0.6", linewidth=0.8)
        ax.set_xlabel("QGE" if of == "gap" else f"q: {self.metric.replace('_', ' ')}")
        ax.set_ylabel("density")
        ax.legend(fontsize=7)
        return ax


class KeptOrder:
    """Compares the order of one quality (n,) with that of others, after sorting it once for all."""

    def __init__(self, quality: Tensor) -> None:
        z = (quality - quality.mean()) / quality.std(correction=0)
        # what is in order already, the comparisons need not sort again
        ordered, self.order = quality.sort()
        self.ranks = average_ranks(ordered)
        edges = torch.tensor([*STRATA, torch.inf], dtype=z.dtype, device=z.device)
        self.edges: list[int] = torch.searchsorted(z[self.order], edges).tolist()

    def compare(self, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Kendall's tau-b, Spearman's rho, and tau-b inside each stratum of quality (S,).

        NaN for a stratum of fewer than two.
        """
        # ranks tie where values do, and have few digits: they are the faster to sort for tau
        ranks = average_ranks(other[self.order])
        inside = [kendall_tau_b(self.ranks[low:high], ranks[low:high]) for low, high in pairwise(self.edges)]
        return kendall_tau_b(self.ranks, ranks), pearson(self.ranks, ranks), torch.stack(inside)


def paper_study(
    task: vd.Task,
    metric: Any = None,
    *,
    rankings: int | None = None,
    draws: int = 10,
    seed: int = 0,
    explanation: Any = None,
    independent_draws: bool = False,
) -> PaperStudy:
    """Score all rankings of each input, or so many sampled ones; compare QGE and QRAND_1..draws with q."""
    scorer = KeptFeatures() if metric is None else vd.api.as_metric(metric)
    scorer.check(task)
    before, key = task.predictor.meter.cost, Key(seed)
    if rankings is None:
        found = (rankings_of(task[i], scorer, seed) for i in range(len(task)))
    else:
        if explanation is not None:
            explanation = as_explanation(explanation, task, seed).matching(task)
        found = iter(sampled_rankings(task, scorer, rankings, key, explanation, independent_draws, False))
    columns: dict[str, list[Tensor]] = {name: [] for name in _AGREEMENT}
    histograms: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in _HISTOGRAMS}
    for sample, scores in zip(task.draw_ids, found, strict=True):
        kept = KeptOrder(scores.scores)
        compared = zip(
            *map(kept.compare, transforms_of(scores, partner_key(key, sample), draws)), strict=True
        )
        tau, rho, inside = (torch.stack(column) for column in compared)
        made = (tau, rho, inside.T, scores.scores.std(correction=0))
        for name, value in zip(_AGREEMENT, made, strict=True):
            columns[name].append(value)
        for name, values in zip(_HISTOGRAMS, (scores.scores, scores.gaps), strict=True):
            histograms[name].append(histogram(values))
    count = len(scores.scores)
    return PaperStudy(
        metric=scorer.name,
        ids=task.ids.cpu(),
        rankings=count,
        exhaustive=rankings is None,
        cost=task.predictor.meter.cost - before,
        **{name: torch.stack(rows).cpu() for name, rows in columns.items()},
        **{
            name: tuple(torch.stack(part).cpu() for part in zip(*rows, strict=True))
            for name, rows in histograms.items()
        },
    )


def histogram(values: Tensor, bins: int = 60) -> tuple[Tensor, Tensor]:
    """Edges (bins + 1,) and density (bins,) over the range of the values."""
    low, high = float(values.min()), float(values.max())
    high = high if high > low else low + 1.0
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    counts = torch.histc(values, bins, low, high).cpu()
    return edges, counts / counts.sum() / (edges[1] - edges[0])
