"""The paper's pictures: where an explanation stands, tau over K, tau by stratum, and the distributions."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from veridical.errors import InputError
from veridical.plots import COLOURS, axes
from veridical.qge.agreement import STRATA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from veridical.qge.standing import Standing
    from veridical.qge.study import RankingStudy

STRATUM_NAMES = (*(f"[{low:g}, {high:g})" for low, high in pairwise(STRATA)), f">= {STRATA[-1]:g}")


def plot_standing(standing: Standing, sample: int = 0, ax: Axes | None = None) -> Axes:
    """The distribution of quality over random rankings, this explanation's place and that of its inverse."""
    ax = axes(ax)
    scores = standing.sample[sample].cpu()
    scores = scores[~scores.isnan()]
    ax.hist(scores, bins=40, density=True, color="0.8", label="random rankings of the same values")
    own = float(standing.quality[sample])
    inverse = own - float(standing.gap[sample])
    ax.axvline(own, color=COLOURS[1], linewidth=2, label=standing.explainer)
    ax.axvline(inverse, color=COLOURS[0], linewidth=1.5, linestyle="--", label="its inverse")
    place, low, high = (100 * float(getattr(standing, n)[sample]) for n in ("percentile", "low", "high"))
    spread = "exactly" if standing.method[sample] == "exact" else f"[{low:.1f}, {high:.1f}]"
    ax.set_title(f"better than {place:.1f}% of rankings ({spread}); QGE {own - inverse:+.3g}", fontsize=9)
    ax.set_xlabel(f"quality: {standing.metric.replace('_', ' ')} (higher is better)")
    ax.set_yticks([])
    ax.legend(fontsize=7)
    return ax


def plot_agreement(
    study: RankingStudy, ax: Axes | None = None, rho: bool = False, stratum: int | None = None
) -> Axes:
    """tau(q, QRAND_K) over K and tau(q, QGE), mean and deviation over inputs (figures 2, 3 and 5)."""
    if stratum is not None and (rho or not 0 <= stratum < len(STRATA)):
        raise InputError(f"a stratum is 0 to {len(STRATA) - 1} and has a tau only, got {stratum}, rho={rho}")
    ax = axes(ax)
    table = (study.rho if rho else study.tau).cpu() if stratum is None else study.stratum_tau[:, stratum]
    mean = table.nanmean(0)
    std = ((table - mean) ** 2).nanmean(0).sqrt()
    k = range(1, table.shape[1])
    ax.set_xticks(k[:: 1 + len(k) // 6])
    ax.fill_between(k, mean[1:] - std[1:], mean[1:] + std[1:], color=COLOURS[0], alpha=0.2, linewidth=0)
    ax.plot(k, mean[1:], color=COLOURS[0], marker="o", label="QRAND$_K$")
    ax.axhline(float(mean[0]), color=COLOURS[1], label="QGE")
    for side in (-1, 1):
        ax.axhline(float(mean[0] + side * std[0]), color=COLOURS[1], linewidth=0.8, linestyle="--")
    ax.set_xlabel("random rankings K")
    ax.set_ylabel("Spearman's rho with q" if rho else "Kendall's tau with q")
    ax.legend(fontsize=8)
    return ax


def plot_strata(study: RankingStudy, ax: Axes | None = None, draws: int = 1) -> Axes:
    """tau among explanations of one stratum of quality, for QGE and QRAND_draws (figure 3)."""
    if not 1 <= draws < study.tau.shape[1]:
        raise InputError(f"the study holds QRAND_1 to QRAND_{study.tau.shape[1] - 1}, not QRAND_{draws}")
    ax = axes(ax)
    for column, label, colour in ((0, "QGE", COLOURS[1]), (draws, f"QRAND$_{{{draws}}}$", COLOURS[0])):
        table = study.stratum_tau[:, :, column].cpu()
        mean = table.nanmean(0)
        std = ((table - mean) ** 2).nanmean(0).sqrt()
        ax.fill_between(STRATA, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
        ax.plot(STRATA, mean, color=colour, marker="o", label=label)
    ax.set_xticks(STRATA, STRATUM_NAMES, fontsize=7)
    ax.set_xlabel("standard deviations of q above its mean")
    ax.set_ylabel("Kendall's tau with q")
    ax.legend(fontsize=8)
    return ax


def plot_distribution(study: RankingStudy, ax: Axes | None = None, of: str = "gap") -> Axes:
    """The density of QGE or of q over the rankings of each input (figures 4 and 6)."""
    if of not in ("gap", "quality"):
        raise InputError(f"of is 'gap' or 'quality', got {of!r}")
    ax = axes(ax)
    edges, density = study.gap_histogram if of == "gap" else study.quality_histogram
    for i in range(len(study)):
        colour = COLOURS[i % len(COLOURS)]
        ax.stairs(density[i], edges[i], color=colour, label=f"input {int(study.ids[i])}")
    if of == "gap":
        ax.axvline(0, color="0.6", linewidth=0.8)
    ax.set_xlabel("QGE" if of == "gap" else f"q: {study.metric.replace('_', ' ')}")
    ax.set_ylabel("density")
    ax.legend(fontsize=7)
    return ax
