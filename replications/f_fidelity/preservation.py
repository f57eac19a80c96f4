"""What fine-tuning leaves as it was: answers under ever stronger masks, and explanations (D.3, D.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from veridical.core.key import Key
from veridical.explainers.base import as_explainer
from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.correctness import Reference
from veridical.fidelity.finetuning import finetune
from veridical.fidelity.robustness import (
    ORIGINAL,
    accuracy_frame,
    accuracy_lines,
    accuracy_under_masks,
    masked_predictions,
    real_shares,
)
from veridical.functional import spearman
from veridical.plots import COLOURS, axes
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MASKED = tuple(percent / 100 for percent in range(5, 55, 5))


@dataclass(frozen=True, eq=False)
class BoundaryStudy:
    """Accuracy and agreement with the original for several fine-tuning betas.

    The paper speaks of agreement "at each perturbation level" and does not say on which input the original is
    evaluated: `agreement` is with its answer to whole inputs, `same_input` with that to the same masked ones.
    """

    shares: tuple[float, ...]
    accuracy: Mapping[str, tuple[float, ...]]
    agreement: Mapping[str, tuple[float, ...]]
    same_input: Mapping[str, tuple[float, ...]]

    def to_frame(self) -> pd.DataFrame:
        """One row per model and masked share."""
        frame = accuracy_frame(self.shares, self.accuracy, self.agreement)
        return frame.assign(same_input=[same for row in self.same_input.values() for same in row])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Accuracy and both agreements over the masked share (figure 1)."""
        return _plot_boundary(self, ax)

    def __repr__(self) -> str:
        masked = [f"{share:.0%}" for share in self.shares]
        whole = accuracy_lines(
            masked, self.accuracy, self.agreement, "   (accuracy, agreement on whole inputs)"
        )
        same = accuracy_lines(
            masked, self.accuracy, self.same_input, "   (accuracy, agreement on the same input)"
        )
        return "\n".join([*whole, *same])


def boundary_study(
    task: Task,
    betas: Sequence[float] = (0.1, 0.3, 0.5),
    *,
    shares: Sequence[float] = (0.0, *MASKED),
    draws: int = 3,
    reference: Reference | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> BoundaryStudy:
    """Mask 5% to 50% and see how answers hold, for models fine-tuned with each beta (figure 1)."""
    models = {ORIGINAL: task}
    for beta in betas:
        tuned = finetune(task, beta=beta, cache=cache, progress=progress, **settings)
        models[f"fine-tuned, beta {beta:g}"] = tuned.on(task)
    shares, _ = real_shares(task, shares)
    key = Key(seed) / "boundary"
    right, whole = accuracy_under_masks(task, models, shares, draws, reference, key)
    own, same = masked_predictions(task, shares, draws, key), {}
    for name, model in models.items():
        equal = (masked_predictions(model, shares, draws, key) == own).double()
        same[name] = tuple(equal.movedim(2, 0).flatten(1).mean(1).tolist())
    return BoundaryStudy(shares, right, whole, same)


@dataclass(frozen=True, eq=False, repr=False)
class MapPair:
    """Maps of the original and of the fine-tuned model for the same targets, and their rank correlation."""

    before: Explanation
    after: Explanation
    correlation: Tensor

    def plot(self, inputs: Tensor | None = None, samples: int = 5) -> Figure:
        """The maps of the first samples side by side, over their inputs where these are given."""
        return _plot_maps(self, inputs, samples)

    def __repr__(self) -> str:
        mean, low = float(self.correlation.nanmean()), float(self.correlation.nan_to_num(1.0).min())
        return (
            f"Maps of {self.before.explainer} before and after fine-tuning: rank correlation {mean:+.3f} on "
            f"average over {len(self.before)} samples, {low:+.3f} at least"
        )


def maps_side_by_side(
    task: Task, finetuned: Finetuned, explainer: Any = "saliency", seed: int = 0
) -> MapPair:
    """Explain the original and the fine-tuned model alike: does fine-tuning change what is explained?"""
    method = as_explainer(explainer)
    before, after = method(task, Key(seed)), method(finetuned.on(task), Key(seed))
    return MapPair(before, after, spearman(before.values, after.values, where=before.valid))


def map_agreement(task: Task, finetuned: Finetuned, explainer: Any = "saliency", seed: int = 0) -> Tensor:
    """Rank correlation (N,) of the maps of the original and of the fine-tuned model for the same targets."""
    return maps_side_by_side(task, finetuned, explainer, seed).correlation


def _plot_boundary(study: BoundaryStudy, ax: Axes | None = None) -> Axes:
    """Accuracy (lines) and agreement with the original (dashes, dots) over the masked share (figure 1)."""
    ax = axes(ax)
    for color, (name, right) in zip(COLOURS, study.accuracy.items(), strict=False):
        ax.plot(study.shares, right, color=color, label=name)
        ax.plot(study.shares, study.agreement[name], "--", color=color, linewidth=0.9)
        ax.plot(study.shares, study.same_input[name], ":", color=color, linewidth=0.9)
    ax.set_ylim(0, 1)
    ax.set_xlabel("masked share of the features")
    ax.set_ylabel("accuracy; agreement: dashed whole, dotted same input")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=7, frameon=False)
    return ax


def _plot_maps(pair: MapPair, inputs: Tensor | None, samples: int) -> Figure:
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
