"""How far FFid's verdict depends on its settings: draws, beta and alpha, one at a time (figure 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.api import as_explanation
from veridical.errors import InputError, unknown_name
from veridical.fidelity.correctness import Reference, with_reference_targets
from veridical.fidelity.finetuning import finetune
from veridical.fidelity.metrics import LEVELS, FFid, Variant
from veridical.fidelity.ranking import NOT_RESOLVABLE, PAIRS, RankingStudy, ranking_study
from veridical.plots import COLOURS, axes
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

WIDTH = len(NOT_RESOLVABLE)
DRAWS, BETA, ALPHA = 50, 0.1, 0.5
"""The settings that stay while another one varies: the paper's defaults."""


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity:
    """One ranking study of FFid for each value of each setting (Tables 24-26)."""

    studies: Mapping[tuple[str, float], RankingStudy]

    def to_frame(self) -> pd.DataFrame:
        """One row per setting, value and pair."""
        import pandas as pd

        rows = []
        for (setting, value), study in self.studies.items():
            frame = study.to_frame().drop(columns=["metric", "micro rank", "micro rank std"])
            rows += [{"setting": setting, "value": value, **row} for row in frame.to_dict("records")]
        return pd.DataFrame(rows)

    def macro(self, setting: str) -> dict[float, tuple[float, ...]]:
        """The macro correlations (MoRF-GT, LeRF-GT, MoRF-LeRF) at each value of one setting."""
        return {
            value: tuple(study.agreements["FFid"].macro[pair][0] for pair in PAIRS)
            for (name, value), study in self.studies.items()
            if name == setting
        }

    def plot(self, setting: str, ax: Axes | None = None) -> Axes:
        """Macro correlations over the values of one setting: "draws", "beta" or "alpha" (figure 5)."""
        if not self.macro(setting):
            raise unknown_name("setting", setting, {name for name, _ in self.studies})
        return _plot_sensitivity(self, setting, ax)

    def __repr__(self) -> str:
        lines = [f"{'setting':<8}{'value':>7}  " + "  ".join(f"{pair:>{WIDTH}}" for pair in PAIRS)]
        for setting in dict.fromkeys(name for name, _ in self.studies):
            for value, found in self.macro(setting).items():
                cells = "  ".join(f"{shown:>{WIDTH}}" for shown in self._cells(setting, value, found))
                lines.append(f"{setting:<8}{value:>7g}  {cells}")
        return "\n".join(lines)

    def _cells(self, setting: str, value: float, found: tuple[float, ...]) -> list[str]:
        study = self.studies[setting, value]
        return [
            ("-" if v != v else f"{v:+.2f}") if study.resolves("FFid", pair) else NOT_RESOLVABLE
            for pair, v in zip(PAIRS, found, strict=True)
        ]


def sensitivity(
    task: Task,
    explainer: Any = "smoothgrad_squared",
    *,
    draws: Sequence[int] = (10, 20, 50, 100),
    betas: Sequence[float] = (0.05, 0.1, 0.15, 0.2),
    alphas: Sequence[float] = (0.3, 0.5, 0.7, 0.9),
    sizes: Sequence[float] = LEVELS,
    repeats: int = 1,
    variant: Variant = "indicator",
    reference: Reference | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Sensitivity:
    """Repeat FFid's ranking study for other numbers of draws, betas and alphas, the others at their defaults.

    Each beta needs a fine-tuning of its own, made with `settings` (those of `finetune`) or found in the
    cache. The maps are explained once.
    """
    if not any((draws, betas, alphas)):
        raise InputError("give at least one value of draws, betas or alphas")
    judged, _ = with_reference_targets(task, reference)
    explanation = as_explanation(explainer, judged, seed)
    made: dict[tuple[int, float, float], RankingStudy] = {}

    def study(count: int, beta: float, alpha: float) -> RankingStudy:
        if (count, beta, alpha) not in made:
            tuned = finetune(task, beta=beta, cache=cache, progress=progress, **settings)
            metric = FFid(sizes=tuple(sizes), draws=count, beta=beta, alpha=alpha, finetuned=tuned)
            made[count, beta, alpha] = ranking_study(
                judged,
                explanation,
                metrics={"FFid": metric},
                repeats=repeats,
                variant=variant,
                reference=reference,
                seed=seed,
                progress=progress,
            )
        return made[count, beta, alpha]

    found: dict[tuple[str, float], RankingStudy] = {}
    found |= {("draws", float(value)): study(value, BETA, ALPHA) for value in draws}
    found |= {("beta", value): study(DRAWS, value, ALPHA) for value in betas}
    found |= {("alpha", value): study(DRAWS, BETA, value) for value in alphas}
    return Sensitivity(found)


def _plot_sensitivity(found: Sensitivity, setting: str, ax: Axes | None = None) -> Axes:
    """FFid's macro correlations over the values of one setting (figure 5)."""
    ax = axes(ax)
    values = dict(sorted(found.macro(setting).items()))
    for color, (place, pair) in zip(COLOURS, enumerate(PAIRS), strict=False):
        ax.plot(list(values), [row[place] for row in values.values()], "o-", color=color, label=pair)
    ax.set_ylim(-1.05, 1.05)
    ax.axhline(0, color="0.7", linewidth=0.8)
    ax.set_xlabel(setting)
    ax.set_ylabel("macro correlation")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=7, frameon=False)
    return ax
