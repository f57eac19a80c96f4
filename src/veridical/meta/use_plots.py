"""Pictures of what meta-evaluation is used for: settings, convergence, sets of explainers, worlds, wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from veridical.meta.damage import PERMUTED
from veridical.plots import COLOURS, axes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from veridical.meta.result import MetaEvaluation
    from veridical.meta.voices import PlantedDamage


SHARE = "in brackets: share of scores that permuted maps change"
"""No MC without it."""


def _with_share(names: Sequence[str], table: pd.DataFrame, by: str = "metric") -> list[str]:
    """Names with the share of scores that permuted maps change, mean over what the table holds of each."""
    shares = table.groupby(by)["dependence"].mean()
    return [f"{name} ({shares[name]:.0%})" for name in names]


def plot_settings(result: MetaEvaluation, ax: Axes | None = None) -> Axes:
    """MC of every setting that was tried, with its spread over iterations, best on top (figure 10, left)."""
    ax = axes(ax, height=1.0 + 0.35 * len(result.metrics))
    frame = result.to_frame()
    frame = frame[frame["test"] == "mean"].sort_values("mc")
    colours = ["0.75" if result.books[label].dependence.blind else COLOURS[0] for label in frame["metric"]]
    names = _with_share(list(frame["metric"]), frame)
    ax.barh(names, frame["mc"], xerr=frame["mc_std"], color=colours, height=0.6)
    ax.set_xlim(0, 1)
    ax.set_xlabel("meta-consistency; grey: does not read the map")
    ax.set_title(SHARE, fontsize=8)
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
    ax.set_ylim(-0.6, table["where"].nunique() - 0.4)
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel("Spearman of the profiles of two metrics")
    ax.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return ax


def plot_explainer_sets(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """MC over all sets of explainers: one mark per set, by its size, a column per metric (A.5.2)."""
    labels = list(dict.fromkeys(table["metric"]))
    ax = axes(ax, width=1.5 + 1.1 * len(labels))
    sizes = sorted(table["count"].unique())
    for place, size in enumerate(sizes):
        part = table[table["count"] == size]
        at = [labels.index(label) + 0.6 * (place + 0.5) / len(sizes) - 0.3 for label in part["metric"]]
        ax.plot(
            at, part["mc"], "o", color=COLOURS[place % len(COLOURS)], markersize=3, label=f"{size} explainers"
        )
    _name_columns(ax, labels, table, "metric")
    return ax


def plot_side_by_side(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """MC of the same metrics on several models or data sets, with their spread (figure 8)."""
    return _bars(table, "metric", ax)


def plot_categories(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Mean MC of each category, one bar per world, and their mean over worlds as a line (figure 6)."""
    ax = _bars(table, "category", ax)
    values = table.groupby("category", sort=False)["mc"]
    for number, (mean, top) in enumerate(zip(values.mean(), values.max(), strict=True)):
        ax.plot([number - 0.42, number + 0.42], [mean, mean], color="black", linewidth=1)
        ax.text(number, top + 0.02, f"mean {mean:.2f}", ha="center", fontsize=7)
    return ax


def _bars(table: pd.DataFrame, by: str, ax: Axes | None) -> Axes:
    """A group of bars for everything named in column `by`, one bar per world, with its spread where known."""
    names, worlds = (list(dict.fromkeys(table[column])) for column in (by, "world"))
    ax = axes(ax, width=1.5 + 1.0 * len(names))
    width = 0.8 / len(worlds)
    for place, world in enumerate(worlds):
        part = table[table["world"] == world].set_index(by).reindex(names)
        at = [number + (place + 0.5) * width - 0.4 for number in range(len(names))]
        spread = part.get("mc_std")
        ax.bar(at, part["mc"], width, yerr=spread, color=COLOURS[place % len(COLOURS)], label=world)
    _name_columns(ax, names, table, by)
    return ax


def _name_columns(ax: Axes, names: list[str], table: pd.DataFrame, by: str) -> None:
    ax.set_xticks(range(len(names)), _with_share(names, table, by), rotation=20, ha="right", fontsize=8)
    ax.set_ylim(0, 1)
    ax.set_ylabel("meta-consistency")
    ax.set_title(SHARE, fontsize=8)
    # beside the marks, where it can hide none of them
    ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def plot_wins(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """How often each metric leads its category, and how often by two standard deviations (figure 15)."""
    names = [f"{row.metric} ({row.category})" for row in table.itertuples()]
    ax = axes(ax, 6.0, 1.2 + 0.35 * len(names))
    ax.barh(names, table["first"] / table["results"], color="0.8", height=0.6, label="first")
    ax.barh(names, table["wins"] / table["results"], color=COLOURS[2], height=0.35, label="by 2 deviations")
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of results")
    ax.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return ax


def plot_voices(found: PlantedDamage, ax: Axes | None = None) -> Axes:
    """Each metric's concordance with planted damage, with its interval; grey ones are silent."""
    judged = [(label, voice) for label, voice in found.voices.items() if not voice.unjudged]
    ax = axes(ax, 6.0, 1.2 + 0.35 * len(judged))
    ax.axvline(0, color="0.7", linewidth=0.8)
    for place, (_, voice) in enumerate(reversed(judged)):
        for kind, shift, mark in ((None, 0.12, "o"), (PERMUTED, -0.12, "s")):
            mean, low, high = voice.mean(kind)
            colour = COLOURS[kind is not None] if voice.heard else "0.7"
            ax.plot([low, high], [place + shift] * 2, color=colour, linewidth=1)
            ax.plot(mean, place + shift, mark, color=colour, markersize=4)
    ax.set_yticks(range(len(judged)), [label for label, _ in reversed(judged)])
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel(f"concordance with damage planted on {found.reference}, {found.counted} samples")
    ax.set_title("circle: all damage, square: permuted places, grey: silent", fontsize=8)
    return ax
