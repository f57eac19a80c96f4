"""Figures of the paper beside those of the package: one point per sample and level, and what was gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from scipy.stats import gaussian_kde

from veridical.gef.model_assumptions import Response
from veridical.gef.plots import distortions, named
from veridical.plots import COLOURS, axes
from veridical.values.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_cloud(scores: Scores, ax: Axes | None = None) -> Axes:
    """One point per sample and level, coloured by the level (figures 3, A.6, A.7)."""
    ax = axes(ax)
    model, explanation = distortions(scores)
    levels = torch.arange(1, model.shape[1] + 1).expand_as(model)
    drawn = ax.scatter(
        model.reshape(-1), explanation.reshape(-1), c=levels.reshape(-1), s=8, alpha=0.6, cmap="viridis"
    )
    ax.figure.colorbar(drawn, ax=ax, label="level")
    for level in sorted({0, model.shape[1] // 2, model.shape[1] - 1}):
        _contours(ax, model[:, level], explanation[:, level], drawn.to_rgba(level + 1))
    ax.set_xscale("symlog", linthresh=1e-2)
    ax.set_xlabel("model distortion")
    ax.set_ylabel("explanation distortion")
    ax.set_title(scores.explainer or "", fontsize=9)
    return ax


def _contours(ax: Axes, model: torch.Tensor, explanation: torch.Tensor, colour: Any) -> None:
    """Two lines of equal density around the points of one level, where they have an area."""
    points = torch.stack([model, explanation]).double()
    points = points[:, points.isfinite().all(0)]
    if points.shape[1] < 5 or torch.linalg.matrix_rank(points - points.mean(1, keepdim=True)) < 2:
        return
    density = gaussian_kde(points.numpy())
    low, high = points.amin(1), points.amax(1)
    x, y = (torch.linspace(float(a), float(b), 60).double() for a, b in zip(low, high, strict=True))
    grid = torch.stack([x.repeat(60), y.repeat_interleave(60)])
    heights = density(grid.numpy()).reshape(60, 60)
    ax.contour(x, y, heights, levels=sorted({float(heights.max()) * s for s in (0.2, 0.6)}), colors=[colour])


def plot_gained(scores: Mapping[str, Scores] | Scores, ax: Axes | None = None) -> Axes:
    """Distortion gained from the first to the last level, model and explanation (figure 8D)."""
    by_name = named(scores)
    ax = axes(ax, height=1.2 + 0.4 * len(by_name))
    for side, (label, colour) in enumerate((("model", COLOURS[0]), ("explanation", COLOURS[1]))):
        gains = []
        for own in by_name.values():
            distortion = distortions(own)[side]
            top = float(distortion.nanmean(0).abs().max())
            gained = float((distortion[:, -1] - distortion[:, 0]).nanmean())
            gains.append(gained / top if top > 0 else 0.0)
        places = [place + 0.2 - 0.4 * side for place in range(len(by_name))]
        ax.barh(places, gains, height=0.36, color=colour, label=label)
    ax.set_yticks(range(len(by_name)), list(by_name))
    ax.axvline(0, color="0.7", linewidth=0.8)
    ax.set_xlabel("distortion gained from first to last level, share of its largest")
    ax.legend(fontsize=7)
    return ax


def plot_responses(responses: Sequence[Response], ax: Axes | None = None) -> Axes:
    """D_f with its spread over samples under some perturbations of one kind (figures A.3, A.4)."""
    ax = axes(ax)
    ends = {"noise": "input noise sigma", "layers": "share of layers randomised", "masking": "share masked"}
    for place, one in enumerate(responses):
        lines, colour = one.distortion.mean(1).cpu(), COLOURS[place % len(COLOURS)]
        mean, spread = lines.mean(0), lines.std(0, correction=0)
        ax.plot(one.levels, mean, color=colour, label=one.label)
        ax.fill_between(one.levels, mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0)
    ax.set_xlabel(ends[responses[0].kind])
    ax.set_ylabel("model distortion")
    ax.legend(fontsize=6)
    return ax
