"""Pictures of a verdict: the ranking with its intervals, and the critical-difference diagram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from veridical.audit.verdict import Place, Verdict
from veridical.errors import InputError
from veridical.plots import COLOURS, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEST, UNTRUSTED, CONTROL = COLOURS[0], COLOURS[1], "0.55"


def plot_ranking(verdict: Verdict, ax: Axes | None = None) -> Axes:
    """Scores with their intervals, best on top and controls below; orange stands not above every control."""
    places = _ranked(verdict, "score")
    ax = axes(ax, height=1.0 + 0.32 * len(places))
    for row, place in enumerate(reversed(places)):
        colour = _colour(place)
        ax.plot(
            [place.low, place.high],
            [row, row],
            color=colour,
            linewidth=2.5,
            alpha=0.5,
            solid_capstyle="round",
        )
        ax.plot(place.score, row, "o", color=colour, markersize=6)
    controls = [place.score for place in places if place.control]
    if controls:
        ax.axvline(max(controls), color=CONTROL, linewidth=1, linestyle="--")
    ax.set_yticks(range(len(places)), [_name(place) for place in reversed(places)])
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel(f"share of rivals beaten, {verdict.level:.0%} interval (dashed: best control)")
    return ax


def plot_critical_difference(verdict: Verdict, ax: Axes | None = None) -> Axes:
    """Mean ranks on a line, 1 is best; bars join methods that the test cannot tell apart (Demsar 2006)."""
    places = sorted(_ranked(verdict, "mean_rank"), key=lambda place: place.mean_rank)
    half = (len(places) + 1) // 2
    ax = axes(ax, 7.0, 1.2 + 0.28 * (half + len(verdict.groups)))
    last = len(places)
    ax.plot([1, last], [0, 0], color="0.2", linewidth=1)
    for rank in range(1, last + 1):
        ax.plot([rank, rank], [0, 0.15], color="0.2", linewidth=1)
        ax.text(rank, 0.25, str(rank), ha="center", va="bottom", fontsize=7)
    if verdict.critical_difference == verdict.critical_difference:
        end = min(1 + verdict.critical_difference, last)
        ax.plot([1, end], [1.1, 1.1], color="0.2", linewidth=1.5)
        ax.text(
            (1 + end) / 2, 1.2, f"CD {verdict.critical_difference:.2f}", ha="center", va="bottom", fontsize=7
        )
    depth = _bars(ax, places, verdict.groups)
    for index, place in enumerate(places):
        left = index < half
        y = -depth - 0.6 * ((index if left else last - 1 - index) + 1)
        x = 0.7 if left else last + 0.3
        ax.plot([place.mean_rank, place.mean_rank, x], [0, y, y], color=_colour(place), linewidth=1)
        said = f"{_name(place)}  {place.mean_rank:.2f}"
        ax.text(x + (-0.1 if left else 0.1), y, said, ha="right" if left else "left", va="center", fontsize=8)
    room = 0.25 * last
    ax.set_xlim(0.6 - room, last + 0.4 + room)
    ax.set_ylim(-depth - 0.6 * (half + 0.6), 1.7)
    ax.set_axis_off()
    return ax


def _bars(ax: Axes, places: Sequence[Place], groups: Sequence[Sequence[str]]) -> float:
    """A bar under each group; gives how far down they reach."""
    rank_of = {place.explainer: place.mean_rank for place in places}
    for row, group in enumerate(groups):
        ranks = [rank_of[name] for name in group if name in rank_of]
        if len(ranks) > 1:
            y = -0.25 - 0.22 * row
            ax.plot(
                [min(ranks) - 0.05, max(ranks) + 0.05],
                [y, y],
                color="0.1",
                linewidth=3.5,
                solid_capstyle="round",
            )
    return 0.2 + 0.22 * len(groups)


def _ranked(verdict: Verdict, by: str) -> list[Place]:
    places = [place for place in verdict.places if getattr(place, by) == getattr(place, by)]
    if not places:
        raise InputError("there is no ranking to draw: no metric had a voice in this verdict")
    return places


def _colour(place: Place) -> str:
    return CONTROL if place.control else BEST if place.trusted else UNTRUSTED


def _name(place: Place) -> str:
    return f"{place.explainer} (control)" if place.control else place.explainer
