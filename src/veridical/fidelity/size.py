"""How many features matter: the size at which FFid+ begins to fall, whatever share may be removed.

With importance in tiers, e(s) = FFid+ at size s is constant on [B/alpha, c1] and falls from max(B/alpha, c1)
(theorem 1). Sweeping beta downwards moves B/alpha; where the onset of the fall no longer follows, it is c1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Between, Count, Index, PartOf
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.correctness import Reference, studied_maps
from veridical.fidelity.falls import measure
from veridical.fidelity.finetuning import given_or_made
from veridical.fidelity.removal import budget
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LEVELS = tuple(percent / 100 for percent in range(1, 100))
CANDIDATE_STEP = 0.0025
"""The grid on which an onset is looked for, in shares of the features."""
FOLLOWS = 0.015
"""How far above B/alpha an onset may lie and still count as following it."""
FAINT = 0.05
"""Curves whose height is less than this share of the highest one drown in noise and are not read."""
SATURATED = 0.6
"""Nor are those higher than this share: with hardly anything left of the first tier the answer is lost
already, and adding others to the draw shows late."""
LATE = 1.5
"""How far behind B/alpha the onset of such a curve may then lie and still bound c1."""
LEFT = 0.6
"""A curve has fallen if it ends below this share of its height."""
UNKNOWN, VARIES = "not identifiable", "importance varies inside the tier"
MIN_FEATURES = 50
"""With fewer features one of them is more than 2% of all, and onsets cannot be told from B/alpha."""


@dataclass(frozen=True, eq=False)
class ExplanationSize:
    """The share of features that matter, or why the curves do not tell.

    `onsets` gives for each beta (B/alpha, onset of the fall); `curves` (betas, sizes) are the mean falls. The
    interval is that of the samples: a map that ranks no tier may show an onset all the same.
    """

    estimate: float | None
    interval: tuple[float, float] | None
    answer: str
    onsets: Mapping[float, tuple[float, float]]
    sizes: tuple[float, ...]
    curves: Mapping[float, Tensor]
    explainer: str
    notes: tuple[str, ...] = ()
    """What must be said of the maps: samples without one, or maps for another class."""

    def to_frame(self) -> pd.DataFrame:
        """One row per beta and size: the mean fall."""
        import pandas as pd

        columns = {beta: curve.tolist() for beta, curve in self.curves.items()}
        frame = pd.DataFrame(columns, index=pd.Index(self.sizes, name="size"))
        return frame.reset_index().melt("size", var_name="beta", value_name="fall")

    def plot(self, ax: Axes | None = None) -> Axes:
        """The curves with their onsets, the estimate and its interval (figure 4)."""
        from veridical.plots import COLOURS, axes

        ax = axes(ax)
        count = max(1, len(self.curves) - 1)
        for place, (beta, curve) in enumerate(sorted(self.curves.items())):
            shade = str(0.75 - 0.75 * place / count)
            ax.plot(self.sizes, curve.tolist(), color=shade, linewidth=1, label=f"beta {beta:.3g}")
            onset = self.onsets[beta][1]
            if onset == onset:
                nearest = min(range(len(self.sizes)), key=lambda i: abs(self.sizes[i] - onset))
                ax.plot(onset, float(curve[nearest]), "o", color=shade, markersize=3)
        if self.interval is not None:
            ax.axvspan(*self.interval, color=COLOURS[0], alpha=0.2, linewidth=0)
        if self.estimate is not None:
            ax.axvline(self.estimate, color=COLOURS[0], label=f"estimate {self.estimate:.3f}")
        ax.set_xlabel("explanation size (share of features)")
        ax.set_ylabel("fall of the right answer's probability")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(fontsize=6, frameon=False)
        return ax

    def __repr__(self) -> str:
        moves = "; ".join(f"beta {b:.3g}: {at:.3f}" for b, (_, at) in self.onsets.items())
        seen = f" (onset of the fall at {moves})" if moves else ""
        return "; ".join([f"ExplanationSize of {self.explainer}: {self.answer}{seen}", *self.notes])


@checked
def explanation_size(
    task: Task,
    explanation: Any,
    *,
    finetuned: Finetuned | None = None,
    beta: PartOf | None = None,
    betas: Sequence[PartOf] | None = None,
    alpha: PartOf = 1.0,
    sizes: Sequence[Between] = LEVELS,
    draws: Count = 10,
    model: Literal["fine-tuned", "original"] = "fine-tuned",
    resamples: Index = 200,
    reference: Reference | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> ExplanationSize:
    """Estimate the share of features that matter from FFid+ under a sweep of beta (section 4, appendix D.8).

    The falls are those of the probability. A size c1 shows only where beta < alpha * c1 for some beta of the
    sweep, and never with fewer than 50 features. Tied features are averaged over rankings that agree.

    Parameters
    ----------
    task : Task
        The model and the samples.
    explanation : Explanation, Tensor, Explainer or str
        The maps, or who makes them.
    finetuned : Finetuned, optional
        The model fine-tuned at the largest beta; None makes it with `beta` and `settings`.
    beta : float, optional
        The largest beta, that of the fine-tuning; None is 0.25 where none is given.
    betas : sequence of float, optional
        What is swept downwards at evaluation; None is ten even steps.
    alpha : float
        Share of the explanation that is removed.
    sizes : sequence of float
        Explanation sizes at which the falls are measured.
    draws : int
        Random subsets per sample, size and beta; rankings of a map with ties share them.
    model : {"fine-tuned", "original"}
        Which model sees masked inputs. Fine-tuning may wash the tiers out, the original may not know what
        to make of masked inputs.
    resamples : int
        Bootstrap resamples, over samples, behind the interval.
    reference : {"label", "prediction"}, optional
        What a right answer is; None is the label where there is one.
    seed : int
        Seed of all draws.
    cache : str or Path, optional
        Folder of artefacts and explanations.
    progress : bool, optional
        Whether a bar is shown; None shows it on terminals.
    **settings
        Settings of `finetune`.

    Returns
    -------
    ExplanationSize
        The estimate and its interval, or why the curves do not tell.
    """
    if model == "original" and (finetuned is not None or settings):
        raise InputError("the original model is not fine-tuned: leave out finetuned= and its settings")
    if model == "fine-tuned":
        finetuned = given_or_made(task, finetuned, beta, 0.25, cache=cache, progress=progress, **settings)
    top = (beta or 0.25) if finetuned is None else finetuned.beta
    swept = tuple(sorted(betas or [top * step / 10 for step in range(1, 11)], reverse=True))
    if swept[0] > top + 1e-12:
        raise InputError(f"betas are swept from {top:g} downwards, that of the fine-tuning, got {swept[0]:g}")
    about = studied_maps(task, explanation, reference, seed)
    maps, n = about.maps, about.task.space.counts(len(about.task))
    few = int(n.median())
    if few < MIN_FEATURES:
        share = f"of {few} features one is {1 / few:.0%}"
        answer = f"{UNKNOWN}: {share}, and a size shows from {MIN_FEATURES} on"
        return ExplanationSize(None, None, answer, {}, tuple(sizes), {}, maps.explainer, about.notes)
    evaluator = about.task if finetuned is None else finetuned.evaluator(about.task)
    key = Key(seed) / "explanation size"
    # betas that allow the same counts ask the same
    distinct = {tuple(budget(n, b).tolist()): b for b in reversed(swept)}.values()
    asked: dict[str, Any] = {"levels": sizes, "alpha": alpha, "draws": draws, "signs": ("plus",), "key": key}
    each = {}
    for b in track(sorted(distinct, reverse=True), "explanation size", progress):
        found = measure(evaluator, maps, about.truth, beta=b, **asked)
        each[b] = found["plus"].probability.double().cpu()
    limits = {b: float((budget(n, b) / n).mean()) / alpha for b in each}
    curves = {b: falls.nanmean(0) for b, falls in each.items()}
    grid = torch.tensor(tuple(sizes), dtype=torch.float64)
    onsets = {b: float(fall_onset(grid, curve[None], limits[b])[0]) for b, curve in curves.items()}
    estimate, interval, answer = read_curves(each, limits, onsets, sizes, resamples, key)
    pairs = {b: (limits[b], onsets[b]) for b in each}
    return ExplanationSize(
        estimate, interval, answer, pairs, tuple(sizes), curves, maps.explainer, about.notes
    )


def fall_onset(sizes: Tensor, curves: Tensor, limit: float) -> Tensor:
    """Where each curve (K, S) leaves its plateau behind `limit` = B/alpha: (K,).

    Least squares of P + a (1 - t/s)+ + b ((1 - t/s)+)^2 over candidates t: past the onset a share t/s of what
    is drawn comes from the first tier. Sizes count by 1/s, so that the long tail does not decide.
    """
    behind = (sizes >= limit - 1e-9) & ~curves.isnan().any(0)
    s, y = sizes[behind], curves[:, behind]
    if len(s) < 5:
        return torch.full((len(curves),), torch.nan, dtype=torch.float64)
    steps = int((float(s[-1]) * 0.8 - float(s[0])) / CANDIDATE_STEP)
    t = s[0] + CANDIDATE_STEP * torch.arange(max(1, steps), dtype=torch.float64)
    share = (1 - t[:, None] / s).clamp(min=0)
    weight = (1 / s).sqrt()
    design = torch.stack([torch.ones_like(share), share, share.square()], -1) * weight[:, None]
    basis = torch.linalg.qr(design).Q
    target = (y * weight).T
    left = target - basis @ (basis.transpose(-1, -2) @ target)
    return t[left.square().sum(1).argmin(0)]


def read_curves(
    each: Mapping[float, Tensor],
    limits: Mapping[float, float],
    onsets: Mapping[float, float],
    sizes: Sequence[float],
    resamples: int,
    key: Key,
) -> tuple[float | None, tuple[float, float] | None, str]:
    """The estimate of c1 and its interval from falls (N, sizes) at each beta, or None and why not."""
    grid = torch.tensor(tuple(sizes), dtype=torch.float64)
    curves = {b: falls.nanmean(0) for b, falls in each.items()}
    heights = {b: float(c.nan_to_num(0.0).max()) for b, c in curves.items()}
    tallest = max(heights.values())
    if tallest <= 1e-6:
        return None, None, f"{UNKNOWN}: removing features changes nothing"
    read = [b for b, height in heights.items() if FAINT * tallest <= height <= SATURATED * tallest]
    if not read:
        if all(onset <= LATE * limits[b] + FOLLOWS for b, onset in onsets.items()):
            return None, None, f"c1 <= {min(limits.values()):.3g}: the onset always lies at B/alpha"
        return None, None, f"{UNKNOWN}: the curves are all about as high, and their onsets do not agree"
    if all(float(curves[b][-3:].mean()) > LEFT * heights[b] for b in read):
        return None, None, f"{UNKNOWN}: the curves do not fall, the map ranks hardly better than chance"
    rest = [b for b in read if onsets[b] > limits[b] + FOLLOWS]
    if 2 * len(rest) <= len(read):
        return None, None, f"{UNKNOWN}, {VARIES}: the curve falls from its start"
    # the median over betas, as a single curve may be misread
    seen = torch.tensor([onsets[b] for b in rest], dtype=torch.float64)
    estimate = float(seen.quantile(0.5))
    count = len(next(iter(each.values())))
    picks = keyed.integers(key / "bootstrap", torch.arange(resamples), 0, count, count)
    drawn = torch.stack([fall_onset(grid, each[b][picks].nanmean(1), limits[b]) for b in rest])
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = torch.quantile(drawn.quantile(0.5, dim=0), ends).tolist()
    if len(rest) > 1 and float(seen.max() - seen.min()) > max(0.6 * estimate, 4 * FOLLOWS):
        return None, (low, high), f"{UNKNOWN}, {VARIES}: the onset never rests"
    answer = f"c1 is {estimate:.3f} of the features, 95% interval [{low:.3f}, {high:.3f}]"
    return estimate, (low, high), answer
