"""Pictures of what a judgement of dictionary metrics found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veridical.dictionaries.trust import Trust
from veridical.errors import unknown_name
from veridical.plots import COLOURS, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHADES = {"use": COLOURS[2], "separates only": COLOURS[4], "follows truth only": COLOURS[5]}


def plot_trust(found: Trust, ax: Axes | None = None) -> Axes:
    """How far trained and the best random control stand apart, in smallest detectable differences.

    Right of the line a metric tells them apart at this size; colours are verdicts.
    """
    table = found.table.iloc[::-1]
    ax = axes(ax, 6.0, 0.3 * len(table) + 1.2)
    steps = table["steps"].clip(-5, 20).fillna(0)
    colours = [_SHADES.get(verdict, COLOURS[1]) for verdict in table["verdict"]]
    ax.barh(table["metric"], steps, color=colours)
    ax.axvline(1, color="black", lw=0.8, ls=":")
    ax.axvline(0, color="black", lw=0.8)
    ax.set(xlabel="(trained - best random control) / smallest detectable difference, cut at -5 and 20")
    seen = dict.fromkeys(found.table["verdict"])
    for name in seen:
        ax.barh([], [], color=_SHADES.get(name, COLOURS[1]), label=name)
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    return ax


def plot_family(found: Trust, metric: str, ax: Axes | None = None) -> Axes:
    """One metric on every dictionary, seed by seed, against truth where it is known."""
    if metric not in found.values:
        raise unknown_name("metric of this judgement", metric, found.values)
    ax = axes(ax, 5.0, 3.6)
    for number, entry in enumerate(found.entries):
        values = found.values[metric][entry].nanmean(1)
        control = entry in found.controls
        across = found.truth["mcc"][entry] if found.truth else values * 0 + number
        style = {"marker": "x" if control else "o", "color": COLOURS[number % len(COLOURS)]}
        ax.scatter(across.tolist(), values.tolist(), s=18, label=entry, **style)  # type: ignore[arg-type]
    ax.set(ylabel=metric, xlabel="MCC with the planted features, above chance" if found.truth else "")
    if not found.truth:
        ax.set_xticks(range(len(found.entries)), found.entries, rotation=60, ha="right", fontsize="small")
    else:
        ax.legend(frameon=False, fontsize="x-small", ncols=2)
    return ax
