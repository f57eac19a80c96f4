"""What the paper makes of meta-evaluations: convergence, sets of explainers, several networks, wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from veridical.errors import InputError, unknown_name
from veridical.functional import spearman
from veridical.meta import MetaEvaluation, by_category
from veridical.meta.plots import SHARE, area_chart, with_share
from veridical.meta.result import MEAN
from veridical.meta.selection import categories
from veridical.plots import COLOURS, axes, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def category_convergence(result: MetaEvaluation) -> pd.DataFrame:
    """Do metrics of one category behave alike? Spearman of their vectors, inside and outside the category.

    A vector holds the four consistencies of IPT and of MPT. One row per pair of metrics (figure 10, right).
    """
    if len(result.metrics) < 2:
        raise InputError(f"convergence compares pairs of metrics, this result has {len(result.metrics)}")
    profiles = {
        label: torch.cat([result[label, test].vector for test in result.averaged]) for label in result.metrics
    }
    rows = []
    for a, b in combinations(profiles, 2):
        same = result.scores[a].category == result.scores[b].category
        rows.append(
            {
                "a": a,
                "b": b,
                "where": "inside" if same else "outside",
                "category": result.scores[a].category if same else "",
                "spearman": float(spearman(profiles[a], profiles[b])),
            }
        )
    return pd.DataFrame(rows)


def with_explainers(result: MetaEvaluation, explainers: Sequence[str]) -> MetaEvaluation:
    """The same result for some of its explainers: no model is asked again."""
    unknown = [name for name in explainers if name not in result.explainers]
    if unknown:
        raise unknown_name("explainer of this result", unknown[0], result.explainers)
    index = torch.tensor([result.explainers.index(name) for name in explainers])
    scores = {
        label: replace(
            table,
            unperturbed={t: each[index] for t, each in table.unperturbed.items()},
            perturbed={p: each[..., index, :] for p, each in table.perturbed.items()},
            checks={who: table.checks[who] for who in explainers if who in table.checks},
        )
        for label, table in result.scores.items()
    }
    return replace(result, scores=scores, explainers=tuple(explainers))


def explainer_dependence(
    result: MetaEvaluation, sets: Sequence[Sequence[str]] | None = None, test: str = MEAN
) -> pd.DataFrame:
    """MC for several sets of explainers, from the scores at hand: no model is asked again (A.5.2).

    All sets of two to L explainers unless some are given. One row per metric and set.
    """
    names = result.explainers
    chosen = sets or [list(some) for size in range(2, len(names) + 1) for some in combinations(names, size)]
    rows = []
    plain = replace(result, resamples=0)  # intervals are not shown, and cost most of the time
    for some in chosen:
        part = with_explainers(plain, some)
        for label in part.metrics:
            rows.append(
                {
                    "metric": label,
                    "explainers": ", ".join(some),
                    "count": len(some),
                    "mc": part.mc(label, test),
                    "mc_std": part[label, test].mc_std,
                    "dependence": part.scores[label].dependence.permuted,
                }
            )
    return pd.DataFrame(rows)


def side_by_side(results: Mapping[str, MetaEvaluation], test: str = MEAN) -> pd.DataFrame:
    """The same metrics on several models or data sets, one row per metric and result (figure 8)."""
    frames = []
    for name, result in results.items():
        frame = result.to_frame()
        frames.append(frame[frame["test"] == test].assign(world=name))
    if not frames:
        raise InputError("give at least one result, as {'resnet': result}")
    return pd.concat(frames, ignore_index=True)


def category_averages(results: Mapping[str, MetaEvaluation], test: str = MEAN) -> pd.DataFrame:
    """MC of each category in each result, mean over its metrics (figure 6); `blind` counts those left out.

    A metric that does not read the explanation says nothing about its category. `dependence` is the mean
    share of scores that permuted maps change.
    """
    rows = []
    for name, result in results.items():
        for category, labels in categories(result).items():
            seeing = [label for label in labels if not result.scores[label].dependence.blind]
            values = torch.tensor([result.mc(label, test) for label in seeing], dtype=torch.float64)
            shares = [result.scores[label].dependence.permuted for label in seeing]
            rows.append(
                {
                    "category": category,
                    "world": name,
                    "mc": float(values.nanmean()),
                    "dependence": float(torch.tensor(shares, dtype=torch.float64).nanmean()),
                    "metrics": len(seeing),
                    "blind": len(labels) - len(seeing),
                }
            )
    if not rows:
        raise InputError("give at least one result, as {'mnist': result}")
    return pd.DataFrame(rows)


def ranking_consistency(results: Mapping[str, MetaEvaluation], test: str = MEAN) -> pd.DataFrame:
    """How often each metric wins its category over several results, by 2 standard deviations (figure 15)."""
    if not results:
        raise InputError("give at least one result, as {'mnist': result}")
    tables = [by_category(result, test).assign(result=name) for name, result in results.items()]
    table = pd.concat(tables, ignore_index=True)
    table["first"] = table["place"] == 1
    grouped = table.groupby(["category", "metric"], sort=False)
    return grouped.agg(results=("result", "size"), first=("first", "sum"), wins=("wins", "sum")).reset_index()


def area_grid(results: Mapping[str, MetaEvaluation]) -> Any:
    """The area charts of the same metrics in several results, one row per result (figures 8 and 15, left)."""
    from matplotlib import pyplot

    labels = list(dict.fromkeys(label for result in results.values() for label in result.metrics))
    if not labels:
        raise InputError("give at least one result with metrics, as {'resnet': result}")
    _, grid = pyplot.subplots(
        len(results),
        len(labels),
        figsize=(2.3 * len(labels) + 0.4, 2.5 * len(results)),
        squeeze=False,
        layout="constrained",
    )
    for row, (name, result) in zip(grid, results.items(), strict=True):
        for ax, label in zip(row, labels, strict=True):
            if label in result.scores:
                area_chart(result, label, ax)
            else:
                ax.set_axis_off()
        row[0].text(-1.75, 0.0, name, rotation=90, ha="center", va="center", fontsize=9)
    grid[0, 0].legend(fontsize=7, loc="lower left", frameon=False)
    return grid


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


def plot_side_by_side(results: Mapping[str, MetaEvaluation] | pd.DataFrame, ax: Axes | None = None) -> Axes:
    """MC of the same metrics on several models or data sets, with their spread (figure 8)."""
    return _bars(_table(results, side_by_side), "metric", ax)


def plot_categories(results: Mapping[str, MetaEvaluation] | pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Mean MC of each category, one bar per world, and their mean over worlds as a line (figure 6)."""
    table = _table(results, category_averages)
    ax = _bars(table, "category", ax)
    values = table.groupby("category", sort=False)["mc"]
    for number, (mean, top) in enumerate(zip(values.mean(), values.max(), strict=True)):
        ax.plot([number - 0.42, number + 0.42], [mean, mean], color="black", linewidth=1)
        ax.text(number, top + 0.02, f"mean {mean:.2f}", ha="center", fontsize=7)
    return ax


def _table(given: Any, make: Callable[[Mapping[str, MetaEvaluation]], pd.DataFrame]) -> pd.DataFrame:
    """The table that a picture shows: given, or made of results by name as `area_grid` takes them."""
    return given if isinstance(given, pd.DataFrame) else make(given)


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
    ax.set_xticks(range(len(names)), with_share(names, table, by), rotation=20, ha="right", fontsize=8)
    ax.set_ylim(0, 1)
    ax.set_ylabel("meta-consistency")
    ax.set_title(SHARE, fontsize=8)
    # beside the marks, where it can hide none of them
    ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def plot_wins(results: Mapping[str, MetaEvaluation] | pd.DataFrame, ax: Axes | None = None) -> Axes:
    """How often each metric leads its category, and how often by two standard deviations (figure 15)."""
    table = _table(results, ranking_consistency)
    names = [f"{row.metric} ({row.category})" for row in table.itertuples()]
    ax = axes(ax, 6.0, 1.2 + 0.35 * len(names))
    ax.barh(names, table["first"] / table["results"], color="0.8", height=0.6, label="first")
    ax.barh(names, table["wins"] / table["results"], color=COLOURS[2], height=0.35, label="by 2 deviations")
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of results")
    ax.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return ax


def scatter(result: MetaEvaluation, ax: Axes | None = None) -> Axes:
    """Resilience (x) against reactivity (y): filled for IAC, open for IEC; colours are metrics (figure 5)."""
    ax = axes(ax, 8.0, 4.0)
    colours = _distinct(len(result.metrics))
    marks = dict(zip(("ipt", "mpt", "combined"), ("o", "s", "^"), strict=True))
    for place, label in enumerate(result.metrics):
        colour = colours[place]
        share = result.scores[label].dependence.permuted
        for test in result.tests:
            iac_nr, iac_ar, iec_nr, iec_ar = result[label, test].vector.tolist()
            name = f"{label} (permuted maps change {share:.0%})" if test == result.tests[0] else None
            ax.plot(iac_nr, iac_ar, marks[test], color=colour, label=name)
            ax.plot(iec_nr, iec_ar, marks[test], color=colour, fillstyle="none")
    ax.set_xlim(-0.05, 1.05)
    ax.set_ylim(-0.05, 1.05)
    ax.set_xlabel("noise resilience")
    ax.set_ylabel("adversary reactivity")
    ax.set_title("filled: IAC, open: IEC; circle: IPT, square: MPT, triangle: both", fontsize=8)
    ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return ax


def _distinct(count: int) -> list[Any]:
    """As many colours as there are metrics, each once up to twenty."""
    if count <= len(COLOURS):
        return list(COLOURS)

    many = [pyplot().colormaps["tab20"](place) for place in range(20)]
    return [many[place % 20] for place in range(count)]
