"""GEF's pictures: distortions along the path, what was gained over it, scores by explainer, assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.plots import COLOURS, axes
from veridical.values.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from veridical.gef.layers import LayerStudy
    from veridical.gef.watched import Watched


def _distortions(scores: Scores) -> tuple[Tensor, Tensor]:
    """Model and explanation distortions (N, Z), the mean over draws."""
    try:
        model, explanation = (scores.details[f"{what}_distortion"] for what in ("model", "explanation"))
    except KeyError:
        raise InputError(f"these are scores of '{scores.metric}', not of GEF") from None
    return model.mean(1).cpu(), explanation.nanmean(1).cpu()


def plot_path(scores: Mapping[str, Scores] | Scores, ax: Axes | None = None) -> Axes:
    """Model against explanation distortion, mean over samples, growing with the level (figures 8, A.10)."""
    ax = axes(ax)
    for place, (name, own) in enumerate(_named(scores).items()):
        model, explanation = (values.nanmean(0) for values in _distortions(own))
        colour = COLOURS[place % len(COLOURS)]
        sizes = torch.linspace(12, 60, len(model))
        ax.plot(model, explanation, color=colour, linewidth=0.8, alpha=0.6)
        ax.scatter(model, explanation, s=sizes, color=colour, label=name)
    ax.set_xscale("symlog", linthresh=1e-2)
    ax.set_xlabel("model distortion")
    ax.set_ylabel("explanation distortion")
    ax.legend(fontsize=7)
    return ax


def plot_cloud(scores: Scores, ax: Axes | None = None) -> Axes:
    """One point per sample and level, coloured by the level (figures 3, A.6, A.7)."""
    ax = axes(ax)
    model, explanation = _distortions(scores)
    levels = torch.arange(1, model.shape[1] + 1).expand_as(model)
    drawn = ax.scatter(
        model.reshape(-1), explanation.reshape(-1), c=levels.reshape(-1), s=8, alpha=0.6, cmap="viridis"
    )
    ax.figure.colorbar(drawn, ax=ax, label="level")
    ax.set_xscale("symlog", linthresh=1e-2)
    ax.set_xlabel("model distortion")
    ax.set_ylabel("explanation distortion")
    ax.set_title(scores.explainer or "", fontsize=9)
    return ax


def plot_gained(scores: Mapping[str, Scores] | Scores, ax: Axes | None = None) -> Axes:
    """Distortion gained from the first to the last level, model and explanation (figure 8D)."""
    named = _named(scores)
    ax = axes(ax, height=1.2 + 0.4 * len(named))
    for side, (label, colour) in enumerate((("model", COLOURS[0]), ("explanation", COLOURS[1]))):
        gains = []
        for own in named.values():
            distortion = _distortions(own)[side]
            top = float(distortion.nanmean(0).abs().max())
            gained = float((distortion[:, -1] - distortion[:, 0]).nanmean())
            gains.append(gained / top if top > 0 else 0.0)
        places = [place + 0.2 - 0.4 * side for place in range(len(named))]
        ax.barh(places, gains, height=0.36, color=colour, label=label)
    ax.set_yticks(range(len(named)), list(named))
    ax.axvline(0, color="0.7", linewidth=0.8)
    ax.set_xlabel("distortion gained from first to last level, share of its largest")
    ax.legend(fontsize=7)
    return ax


def plot_scores_by_explainer(scores: Mapping[str, Scores] | Scores, ax: Axes | None = None) -> Axes:
    """The distribution of scores over samples, one violin per explainer, best on top (figure 7).

    The grey bar is the ceiling, the mean rank correlation of the noise level with the model's own movement.
    """
    named = _named(scores)
    order = sorted(named, key=lambda name: named[name].mean(skip_nan=True))
    ax = axes(ax, height=1.2 + 0.4 * len(order))
    for place, name in enumerate(order):
        own = named[name]
        kept = own.values[~own.values.isnan()].cpu()
        if len(kept) > 1 and float(kept.max()) > float(kept.min()):
            ax.violinplot([kept.numpy()], [place], orientation="horizontal", widths=0.8, showextrema=False)
        ax.plot(own.mean(skip_nan=True), place, "o", color=COLOURS[0], markersize=4)
        if "ceiling" in own.details:
            ceiling = float(own.details["ceiling"].nanmean())
            ax.plot([ceiling, ceiling], [place - 0.35, place + 0.35], color="0.5", linewidth=2)
    ax.set_yticks(range(len(order)), order)
    ax.axvline(0, color="0.7", linewidth=0.8)
    ax.set_xlabel("faithfulness (grey bar: ceiling)")
    return ax


def plot_watched(watched: Sequence[Watched], ax: Axes | None = None, samples: int = 0) -> Axes:
    """D_f with its spread over samples for some perturbations, or single samples of the first of them."""
    ax = axes(ax)
    ends = {"noise": "input noise sigma", "layers": "share of layers randomised", "masking": "share masked"}
    for place, one in enumerate(watched[:1] if samples else watched):
        lines, colour = one.distortion.mean(1).cpu(), COLOURS[place % len(COLOURS)]
        if samples:
            for line in lines[:samples]:
                ax.plot(one.levels, line, linewidth=0.9)
            continue
        spread = lines.std(0, correction=0)
        ax.plot(one.levels, lines.mean(0), color=colour, label=one.label)
        ax.fill_between(
            one.levels, lines.mean(0) - spread, lines.mean(0) + spread, color=colour, alpha=0.12, linewidth=0
        )
    ax.set_xlabel(ends[watched[0].kind])
    ax.set_ylabel("model distortion")
    if not samples:
        ax.legend(fontsize=6)
    return ax


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


def _named(scores: Mapping[str, Scores] | Scores) -> dict[str, Scores]:
    if isinstance(scores, Scores):
        return {scores.explainer or "explanation": scores}
    if not scores:
        raise InputError("there are no scores to draw")
    return dict(scores)
