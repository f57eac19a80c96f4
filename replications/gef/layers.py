"""Sparse codes scored layer by layer: their faithfulness, and how sparse they are (GEF figure 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from veridical.core.key import Key, as_key
from veridical.errors import InputError
from veridical.explainers import Explainer
from veridical.functional import spearman
from veridical.gef import GEF, FastGEF, LayerCodes
from veridical.plots import COLOURS, axes
from veridical.values.scores import Scores
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class LayerStudy:
    """The codes of several layers, judged."""

    scores: Mapping[str, Scores]
    """Scores by layer."""
    l1: Mapping[str, float]
    """The mean L1 of the unperturbed codes, divided by their root mean square."""
    active: Mapping[str, float]
    """The mean share of the unperturbed codes that is not 0."""

    @property
    def sparsity_correlation(self) -> float:
        """Spearman of the layers' L1 with their mean scores (figure 10 B); NaN below three layers."""
        if len(self.scores) < 3:
            return float("nan")
        means = [own.mean(skip_nan=True) for own in self.scores.values()]
        pair = torch.tensor([list(self.l1.values()), means], dtype=torch.float64)
        return float(spearman(pair[0], pair[1]))

    def to_frame(self) -> pd.DataFrame:
        """One row per layer."""
        import pandas as pd

        rows = []
        for layer, own in self.scores.items():
            low, high = own.ci()
            rows.append(
                {
                    "layer": layer,
                    "score": own.mean(skip_nan=True),
                    "low": low,
                    "high": high,
                    "ceiling": float(own.details["ceiling"].nanmean()),
                    "l1": self.l1[layer],
                    "active": self.active[layer],
                    "flagged": own.flagged,
                }
            )
        return pd.DataFrame(rows)


def across_layers(
    task: Task,
    encoders: Mapping[str, Any],
    metric: GEF | None = None,
    seed: int | Key = 0,
    **settings: Any,
) -> LayerStudy:
    """Score the codes of several layers: `encoders` has one by each layer's name, or finished explainers.

    `settings` (axis, pool, ...) go to `LayerCodes`. The default is Fast-GEF with cosine distance, as the
    paper uses it for sparse codes. The noise path is the task's, searched once for all layers.
    """
    if not encoders:
        raise InputError("give at least one layer and its encoder")
    judge = metric or FastGEF(distance="cosine")
    key = as_key(seed)
    scores, l1, active = {}, {}, {}
    for layer, encoder in encoders.items():
        codes = encoder if isinstance(encoder, Explainer) else LayerCodes(encoder, layer, **settings)
        values = codes(task, key).normalised().values.abs().double()
        l1[layer] = float(values.sum(-1).mean())
        active[layer] = float((values > 0).double().mean())
        scores[layer] = judge(task, codes, key)
    return LayerStudy(scores, l1, active)


def plot_layers(studies: Mapping[str, LayerStudy] | LayerStudy, ax: Axes | None = None) -> Axes:
    """Scores of sparse codes over layers with their intervals, one line per study (figure 10 A)."""
    ax = axes(ax)
    named = dict(studies) if isinstance(studies, Mapping) else {"": studies}
    for place, (label, study) in enumerate(named.items()):
        frame = study.to_frame()
        colour = COLOURS[place % len(COLOURS)]
        ax.plot(frame["layer"], frame["score"], "o-", color=colour, markersize=4, label=label or "score")
        ax.fill_between(frame["layer"], frame["low"], frame["high"], color=colour, alpha=0.15, linewidth=0)
        ax.plot(frame["layer"], frame["ceiling"], ":", color=colour, linewidth=0.9)
    ax.axhline(0, color="0.7", linewidth=0.8)
    ax.set_xlabel("layer")
    ax.set_ylabel("faithfulness (dotted: ceiling)")
    if len(named) > 1:
        ax.legend(fontsize=7)
    return ax


def plot_sparsity(studies: Mapping[str, LayerStudy] | LayerStudy, ax: Axes | None = None) -> Axes:
    """Scores of sparse codes against their L1, one point per layer, with rank correlation (figure 10 B)."""
    ax = axes(ax)
    named = dict(studies) if isinstance(studies, Mapping) else {"layers": studies}
    for place, (label, study) in enumerate(named.items()):
        frame = study.to_frame()
        text = f"{label}, rho = {study.sparsity_correlation:.2f}"
        ax.scatter(frame["l1"], frame["score"], s=24, color=COLOURS[place % len(COLOURS)], label=text)
        for layer, x, y in zip(frame["layer"], frame["l1"], frame["score"], strict=True):
            ax.annotate(layer, (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")
    ax.set_xlabel("L1 of the unperturbed codes")
    ax.set_ylabel("faithfulness")
    ax.legend(fontsize=7)
    return ax
