"""Pictures of what meta-evaluation is used for: settings, convergence, sets of explainers, worlds, wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veridical.plots import COLOURS, axes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from veridical.meta.result import MetaEvaluation


def plot_settings(result: MetaEvaluation, ax: Axes | None = None) -> Axes:
    """MC of every setting that was tried, with its spread over iterations, best on top (figure 10, left)."""
    ax = axes(ax, height=1.0 + 0.35 * len(result.metrics))
    frame = result.to_frame()
    frame = frame[frame["test"] == "mean"].sort_values("mc")
    colours = ["0.75" if result.books[label].dependence.blind else COLOURS[0] for label in frame["metric"]]
    ax.barh(frame["metric"], frame["mc"], xerr=frame["mc_std"], color=colours, height=0.6)
    ax.set_xlim(0, 1)
    ax.set_xlabel("meta-consistency (grey: does not read the map)")
    return ax


def plot_convergence(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Rank correlations of the metrics' profiles, inside categories and across them (figure 10, right)."""
    ax = axes(ax, height=2.4)
    for place, (where, part) in enumerate(table.groupby("where", sort=False)):
        colour = COLOURS[place]
        ax.plot(part["spearman"], [place] * len(part), "|", color=colour, markersize=14)
        mean = float(part["spearman"].mean())
        ax.plot(mean, place, "o", color=colour, label=f"{where}: mean {mean:.2f} of {len(part)}")
    ax.set_yticks(range(table["where"].nunique()), list(dict.fromkeys(table["where"])))
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel("Spearman of the profiles of two metrics")
    ax.legend(fontsize=7)
    return ax


def plot_explainer_sets(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """MC over all sets of explainers: one mark a set, by its size, a column a metric (A.5.2)."""
    labels = list(dict.fromkeys(table["metric"]))
    ax = axes(ax, width=1.5 + 1.1 * len(labels))
    sizes = sorted(table["count"].unique())
    for place, size in enumerate(sizes):
        part = table[table["count"] == size]
        at = [labels.index(label) + 0.6 * (place + 0.5) / len(sizes) - 0.3 for label in part["metric"]]
        ax.plot(
            at, part["mc"], "o", color=COLOURS[place % len(COLOURS)], markersize=3, label=f"{size} explainers"
        )
    ax.set_xticks(range(len(labels)), labels, rotation=20, ha="right", fontsize=8)
    ax.set_ylim(0, 1)
    ax.set_ylabel("meta-consistency")
    ax.legend(fontsize=7)
    return ax


def plot_side_by_side(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """MC of the same metrics on several models or data sets, with their spread (figure 8)."""
    labels, worlds = (list(dict.fromkeys(table[name])) for name in ("metric", "world"))
    ax = axes(ax, width=1.5 + 0.9 * len(labels))
    width = 0.8 / len(worlds)
    for place, world in enumerate(worlds):
        part = table[table["world"] == world].set_index("metric").reindex(labels)
        at = [number + (place + 0.5) * width - 0.4 for number in range(len(labels))]
        ax.bar(at, part["mc"], width, yerr=part["mc_std"], color=COLOURS[place % len(COLOURS)], label=world)
    ax.set_xticks(range(len(labels)), labels, rotation=20, ha="right", fontsize=8)
    ax.set_ylim(0, 1)
    ax.set_ylabel("meta-consistency")
    ax.legend(fontsize=7)
    return ax


def plot_wins(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """How often each metric leads its category, and how often by two standard deviations (figure 15)."""
    names = [f"{row.metric} ({row.category})" for row in table.itertuples()]
    ax = axes(ax, height=1.0 + 0.35 * len(names))
    ax.barh(names, table["first"] / table["results"], color="0.8", height=0.6, label="first")
    ax.barh(names, table["wins"] / table["results"], color=COLOURS[2], height=0.35, label="by 2 deviations")
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of results")
    ax.legend(fontsize=7)
    return ax
