"""The picture of a verdict: the ranking with its intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veridical.auditing.verdict import Place, Verdict
from veridical.errors import InputError
from veridical.plots import COLOURS, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEST, UNTRUSTED, CONTROL = COLOURS[0], COLOURS[1], "0.55"


def plot_ranking(verdict: Verdict, ax: Axes | None = None) -> Axes:
    """Scores with their intervals, best on top and controls below; orange is not trusted."""
    places = [place for place in verdict.places if place.score == place.score]
    if not places:
        raise InputError("there is no ranking to draw: no metric had a voice in this verdict")
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
    ax.axvline(0.5, color=CONTROL, linewidth=1, linestyle="--")
    ax.set_yticks(range(len(places)), [_name(place) for place in reversed(places)])
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel(f"samples in which it beats the controls, {verdict.level:.0%} interval (dashed: half)")
    return ax


def _colour(place: Place) -> str:
    return CONTROL if place.control else BEST if place.trusted else UNTRUSTED


def _name(place: Place) -> str:
    return f"{place.explainer} (control)" if place.control else place.explainer
