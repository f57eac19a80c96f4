"""Pictures of a meta-evaluation, of a search of settings, and of planted damage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from veridical.meta.damage import PERMUTED
from veridical.plots import COLOURS, axes, pyplot

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from veridical.meta.admissible import PlantedDamage
    from veridical.meta.result import MetaEvaluation

CORNERS = (
    ("IAC$_{NR}$", 0.0, 1.0),
    ("IEC$_{NR}$", 1.0, 0.0),
    ("IAC$_{AR}$", 0.0, -1.0),
    ("IEC$_{AR}$", -1.0, 0.0),
)
ORDER = (0, 2, 1, 3)
"""Which entry of the vector (IAC_NR, IAC_AR, IEC_NR, IEC_AR) lies at each corner."""
SHARE = "in brackets: share of scores that permuted maps change"
"""No MC without it."""
NAMES = {"ipt": "IPT", "mpt": "MPT", "combined": "both"}


def area_chart(result: MetaEvaluation, metric: str, ax: Axes | None = None) -> Axes:
    """The four consistencies of one metric as an area, one per test; grey is what a perfect metric fills.

    The share of scores that permuted maps change stands under the name: no MC without it.
    """
    ax = axes(ax, 2.4, 2.6)
    ax.fill([x for _, x, _ in CORNERS], [y for *_, y in CORNERS], color="0.92", zorder=0)
    for test, colour in zip(result.tests, COLOURS, strict=False):
        vector = result[metric, test].vector.nan_to_num(0.0).tolist()
        points = [
            (vector[place] * x, vector[place] * y) for place, (_, x, y) in zip(ORDER, CORNERS, strict=True)
        ]
        xs, ys = zip(*points, strict=True)
        ax.fill(xs, ys, color=colour, alpha=0.35, label=NAMES[test])
        ax.plot([*xs, xs[0]], [*ys, ys[0]], color=colour, linewidth=1)
    for name, x, y in CORNERS:
        ax.text(1.18 * x, 1.18 * y, name, ha="center", va="center", fontsize=7)
    dependence = result.scores[metric].dependence
    blind = ", blind" if dependence.blind else ""
    name, reads = metric.replace("_", " "), f"permuted maps change {dependence.permuted:.0%}{blind}"
    mc = result.mc(metric)
    ax.set_title(
        f"{name} ({f'{mc:.3f}' if mc == mc else 'no value'})\n{reads}",
        fontsize=8,
        color="#d55e00" if dependence.blind else "black",
    )
    ax.set_xlim(-1.4, 1.4)
    ax.set_ylim(-1.4, 1.4)
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def area_charts(result: MetaEvaluation) -> Any:
    """One area chart per metric, one column per category (figure 7); gives the array of axes."""
    columns: dict[str, list[str]] = {}
    for label, table in result.scores.items():
        columns.setdefault(table.category or "own", []).append(label)
    height = max(map(len, columns.values()))
    _, grid = pyplot().subplots(
        height, len(columns), figsize=(2.3 * len(columns), 2.5 * height), squeeze=False, layout="constrained"
    )
    for column, labels in enumerate(columns.values()):
        for row in range(height):
            if row < len(labels):
                area_chart(result, labels[row], grid[row, column])
            else:
                grid[row, column].set_axis_off()
    grid[0, 0].legend(fontsize=7, loc="lower left", frameon=False)
    return grid


def with_share(names: Sequence[str], table: pd.DataFrame, by: str = "metric") -> list[str]:
    """Names with the share of scores that permuted maps change, mean over what the table holds of each."""
    shares = table.groupby(by)["dependence"].mean()
    return [f"{name} ({shares[name]:.0%})" for name in names]


def plot_settings(result: MetaEvaluation, ax: Axes | None = None) -> Axes:
    """MC of every setting that was tried, with its spread over iterations, best on top (figure 10, left)."""
    ax = axes(ax, height=1.0 + 0.35 * len(result.metrics))
    frame = result.to_frame()
    frame = frame[frame["test"] == "mean"].sort_values("mc")
    colours = ["0.75" if result.scores[label].dependence.blind else COLOURS[0] for label in frame["metric"]]
    names = with_share(list(frame["metric"]), frame)
    ax.barh(names, frame["mc"], xerr=frame["mc_std"], color=colours, height=0.6)
    ax.set_xlim(0, 1)
    ax.set_xlabel("meta-consistency; grey: does not read the map")
    ax.set_title(SHARE, fontsize=8)
    return ax


def plot_damage(found: PlantedDamage, ax: Axes | None = None) -> Axes:
    """Each metric's concordance with planted damage, with its interval; grey ones are not admissible."""
    tested = [(label, metric) for label, metric in found.metrics.items() if not metric.untested]
    ax = axes(ax, 6.0, 1.2 + 0.35 * len(tested))
    ax.axvline(0, color="0.7", linewidth=0.8)
    for place, (_, metric) in enumerate(reversed(tested)):
        for kind, shift, mark in ((None, 0.12, "o"), (PERMUTED, -0.12, "s")):
            mean, low, high = metric.mean(kind)
            colour = COLOURS[kind is not None] if metric.admissible else "0.7"
            ax.plot([low, high], [place + shift] * 2, color=colour, linewidth=1)
            ax.plot(mean, place + shift, mark, color=colour, markersize=4)
    ax.set_yticks(range(len(tested)), [label for label, _ in reversed(tested)])
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel(f"concordance with damage planted on {found.reference}, {found.counted} samples")
    ax.set_title("circle: all damage, square: permuted places, grey: not admissible", fontsize=8)
    return ax
