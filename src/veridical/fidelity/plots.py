"""Pictures of the studies: answers under masks, settings, explanation sizes, maps before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from veridical.fidelity.correlations import PAIRS
from veridical.plots import COLOURS, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from veridical.fidelity.preservation import BoundaryStudy, MapPair
    from veridical.fidelity.sensitivity import Sensitivity
    from veridical.fidelity.size import ExplanationSize


def plot_boundary(study: BoundaryStudy, ax: Axes | None = None) -> Axes:
    """Accuracy (lines) and agreement with the original (dashes) over the masked share (figure 1)."""
    ax = axes(ax)
    for color, (name, right) in zip(COLOURS, study.accuracy.items(), strict=False):
        ax.plot(study.shares, right, color=color, label=name)
        ax.plot(study.shares, study.agreement[name], "--", color=color, linewidth=0.9)
    ax.set_ylim(0, 1)
    ax.set_xlabel("masked share of the features")
    ax.set_ylabel("accuracy; dashed: agreement")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=7, frameon=False)
    return ax


def plot_sensitivity(found: Sensitivity, setting: str, ax: Axes | None = None) -> Axes:
    """FFid's macro correlations over the values of one setting (figure 5)."""
    ax = axes(ax)
    values = dict(sorted(found.macro(setting).items()))
    for color, (place, pair) in zip(COLOURS, enumerate(PAIRS), strict=False):
        ax.plot(list(values), [row[place] for row in values.values()], "o-", color=color, label=pair)
    ax.set_ylim(-1.05, 1.05)
    ax.axhline(0, color="0.7", linewidth=0.8)
    ax.set_xlabel(setting)
    ax.set_ylabel("macro correlation")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=7, frameon=False)
    return ax


def plot_size(size: ExplanationSize, ax: Axes | None = None) -> Axes:
    """The fall over sizes for every beta, its onset dotted; the estimate and its interval (figure 4)."""
    ax = axes(ax)
    count = max(1, len(size.curves) - 1)
    for place, (beta, curve) in enumerate(sorted(size.curves.items())):
        shade = str(0.75 - 0.75 * place / count)
        ax.plot(size.sizes, curve.tolist(), color=shade, linewidth=1, label=f"beta {beta:.3g}")
        onset = size.onsets[beta][1]
        if onset == onset:
            nearest = min(range(len(size.sizes)), key=lambda i: abs(size.sizes[i] - onset))
            ax.plot(onset, float(curve[nearest]), "o", color=shade, markersize=3)
    if size.interval is not None:
        ax.axvspan(*size.interval, color=COLOURS[0], alpha=0.2, linewidth=0)
    if size.estimate is not None:
        ax.axvline(size.estimate, color=COLOURS[0], label=f"estimate {size.estimate:.3f}")
    ax.set_xlabel("explanation size (share of features)")
    ax.set_ylabel("fall of the right answer's probability")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=6, frameon=False)
    return ax


def plot_maps(pair: MapPair, inputs: Tensor | None, samples: int) -> Figure:
    """Maps of the original above those of the fine-tuned model, a column per sample (D.4)."""
    from matplotlib.figure import Figure

    count = min(samples, len(pair.before))
    figure = Figure(figsize=(1.7 * count, 3.8), layout="constrained")
    grid = figure.subplots(2, count, squeeze=False)
    for column in range(count):
        for row, maps in enumerate((pair.before, pair.after)):
            ax = grid[row, column]
            maps.plot(column, ax, inputs)
            ax.set_title("")
        grid[0, column].set_title(f"rank corr. {float(pair.correlation[column]):+.2f}", fontsize=8)
    for row, name in enumerate(("original", "fine-tuned")):
        grid[row, 0].text(
            -0.08,
            0.5,
            name,
            rotation=90,
            ha="right",
            va="center",
            fontsize=9,
            transform=grid[row, 0].transAxes,
        )
    return figure
