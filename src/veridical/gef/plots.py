"""GEF's pictures and its table of quadrants: distortions along the path, and scores by explainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.plots import COLOURS, axes
from veridical.values.scores import Scores

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def distortions(scores: Scores) -> tuple[Tensor, Tensor]:
    """Model and explanation distortions (N, Z), the mean over draws."""
    try:
        model, explanation = (scores.details[f"{what}_distortion"] for what in ("model", "explanation"))
    except KeyError:
        raise InputError(f"these are scores of '{scores.metric}', not of GEF") from None
    return model.mean(1).cpu(), explanation.nanmean(1).cpu()


def quadrants(
    scores: Scores, model_threshold: float | None = None, explanation_threshold: float | None = None
) -> pd.DataFrame:
    """Count where model and explanation stay or move together, level by level (figure 2 B of the GEF paper).

    True positives: both stay; true negatives: both move; false positives: the explanation stays although the
    model moved (too robust); false negatives: it moves although the model stayed (too sensitive).

    Parameters
    ----------
    scores : Scores
        Scores of `fast_gef`, `gef` or `gef_iso`.
    model_threshold : float, optional
        D_f up to which the model stays; by default the median over all samples, draws and levels.
    explanation_threshold : float, optional
        D_phi up to which the explanation stays; by default its median.

    Returns
    -------
    pandas.DataFrame
        The shares `tp`, `tn`, `fp`, `fn` and `aligned` = tp + tn at each level, one row per `sigma`.

    Raises
    ------
    InputError
        If these are no scores of GEF.

    Examples
    --------
    >>> import veridical as vd
    >>> task = vd.Task(torch.nn.Linear(4, 3), torch.randn(8, 4))
    >>> scores = vd.score("fast_gef", task, "gradient", draws=1, path=(0.1, 0.5, 1.0))
    >>> list(vd.gef.quadrants(scores).columns)
    ['sigma', 'tp', 'tn', 'fp', 'fn', 'aligned']
    """
    import pandas as pd

    distortions(scores)  # refuses what has none
    model, explanation = (scores.details[f"{what}_distortion"].cpu() for what in ("model", "explanation"))
    known = model.isfinite() & explanation.isfinite()
    moved = []
    given = (model_threshold, explanation_threshold)
    for values, threshold in zip((model, explanation), given, strict=True):
        moved.append(values > (values[known].median() if threshold is None else threshold))
    f, phi = moved
    kinds = {"tp": ~f & ~phi, "tn": f & phi, "fp": f & ~phi, "fn": ~f & phi, "aligned": f == phi}
    count = known.sum((0, 1))
    shares = {name: ((where & known).sum((0, 1)) / count).tolist() for name, where in kinds.items()}
    return pd.DataFrame({"sigma": scores.provenance["path"]["levels"], **shares})


def plot_path(scores: Mapping[str, Scores] | Scores, ax: Axes | None = None) -> Axes:
    """Model against explanation distortion, mean over samples, growing with the level (figures 8, A.10)."""
    ax = axes(ax)
    for place, (name, own) in enumerate(named(scores).items()):
        model, explanation = (values.nanmean(0) for values in distortions(own))
        colour = COLOURS[place % len(COLOURS)]
        sizes = torch.linspace(12, 60, len(model))
        ax.plot(model, explanation, color=colour, linewidth=0.8, alpha=0.6)
        ax.scatter(model, explanation, s=sizes, color=colour, label=name)
    ax.set_xscale("symlog", linthresh=1e-2)
    ax.set_xlabel("model distortion")
    ax.set_ylabel("explanation distortion")
    ax.legend(fontsize=7)
    return ax


def plot_scores_by_explainer(scores: Mapping[str, Scores] | Scores, ax: Axes | None = None) -> Axes:
    """The distribution of scores over samples, one violin per explainer, best on top (figure 7).

    The grey bar is the ceiling, the mean rank correlation of the noise level with the model's own movement.
    """
    by_name = named(scores)
    order = sorted(by_name, key=lambda name: by_name[name].mean(skip_nan=True))
    ax = axes(ax, height=1.2 + 0.4 * len(order))
    for place, name in enumerate(order):
        own = by_name[name]
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


def named(scores: Mapping[str, Scores] | Scores) -> dict[str, Scores]:
    """Scores by method, of one or of several methods."""
    if isinstance(scores, Scores):
        return {scores.explainer or "explanation": scores}
    if not scores:
        raise InputError("there are no scores to draw")
    return dict(scores)
