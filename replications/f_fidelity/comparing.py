"""Real explainers side by side: FFid averaged over sizes, and what the model was fine-tuned on (D.10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.api import as_explanation
from veridical.core.allowed import Between, Count, PartOf
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.correctness import Reference, refuse_chance, with_reference_targets
from veridical.fidelity.finetuning import given_or_made
from veridical.fidelity.metrics import LEVELS, FFid
from veridical.fidelity.ranking import GRID
from veridical.fidelity.removal import SIGNS
from veridical.values.scores import Scores
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

OTHER_ROWS = "fine-tuned on other rows than those evaluated"
SAME_ROWS = "fine-tuned on the evaluated rows: compare explainers within this set only"


@dataclass(frozen=True, eq=False, repr=False)
class ExplainerTable:
    """FFid+ and FFid- of every explainer (Tables 11 and 12); `mode` says what the model was fine-tuned on."""

    scores: Mapping[str, Mapping[str, Scores]]
    mode: str
    notes: tuple[str, ...] = ()
    """What its certificate holds against the judge."""

    def to_frame(self) -> pd.DataFrame:
        """One row per explainer: means, and the bounds of their bootstrap intervals."""
        import pandas as pd

        rows = []
        for name, found in self.scores.items():
            row: dict[str, Any] = {"explainer": name, "mode": self.mode}
            for sign, values in found.items():
                low, high = values.ci()
                row |= {sign: values.mean(), f"{sign} low": low, f"{sign} high": high}
            rows.append(row)
        return pd.DataFrame(rows)

    @property
    def best(self) -> dict[str, str | None]:
        """The explainer with the highest FFid+ and the one with the lowest FFid-; None where some tie."""
        out: dict[str, str | None] = {}
        for sign, way in zip(SIGNS, (1, -1), strict=True):
            means = {name: way * float(found[sign].mean()) for name, found in self.scores.items()}
            top = [name for name, mean in means.items() if mean >= max(means.values()) - GRID]
            out[sign] = top[0] if len(top) == 1 else None
        return out

    def __repr__(self) -> str:
        width = max(10, *map(len, self.scores))
        lines = [f"{'explainer':<{width}}  {'FFid+ (higher)':>24}  {'FFid- (lower)':>24}"]
        for name, found in self.scores.items():
            cells = []
            for sign in SIGNS:
                low, high = found[sign].ci()
                mark = "*" if self.best[sign] == name else " "
                cells.append(f"{found[sign].mean():+.4f}{mark} [{low:+.4f}, {high:+.4f}]")
            lines.append(f"{name:<{width}}  {cells[0]:>24}  {cells[1]:>24}")
        return "\n".join([*lines, self.mode, *self.notes])


@checked
def compare_explainers(
    task: Task,
    explainers: Sequence[Any] = ("gradcam", "saliency"),
    *,
    finetuned: Finetuned | None = None,
    on_evaluated: bool = False,
    beta: PartOf | None = None,
    alpha: PartOf = 0.5,
    draws: Count = 50,
    sizes: Sequence[Between] = LEVELS,
    reference: Reference | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> ExplainerTable:
    """FFid+ and FFid- of each explainer, averaged over sizes, on one fine-tuned model.

    `on_evaluated=True` fine-tunes on the evaluated rows themselves, as the paper does on ImageNet: that
    model serves to compare explainers on these rows and nothing else, and the result says so.
    """
    if on_evaluated and finetuned is not None:
        raise InputError("give either finetuned=... or on_evaluated=True, not both")
    refuse_chance(task, reference)
    judged, truth = with_reference_targets(task, reference)
    made = {"cache": cache, "progress": progress, **settings}
    if on_evaluated:
        made |= {"train": (task.inputs, truth), "train_side": task.side, "train_space": task.space}
    finetuned = given_or_made(task, finetuned, beta, 0.1, **made)
    scores: dict[str, dict[str, Scores]] = {}
    for explainer in explainers:
        explanation = as_explanation(explainer, judged, seed)
        metrics = {
            sign: FFid(sign, tuple(sizes), finetuned=finetuned, beta=finetuned.beta, alpha=alpha, draws=draws)
            for sign in SIGNS
        }
        scores[explanation.explainer] = {
            sign: metric(judged, explanation, Key(seed)) for sign, metric in metrics.items()
        }
    return ExplainerTable(scores, _mode(task, finetuned), finetuned.held_out.flags)


def _mode(task: Task, finetuned: Finetuned) -> str:
    """What the artefact was made from, by the digests of its rows: whatever rows the task has."""
    met = finetuned.rows_seen(task.inputs)
    if met == len(task):
        return SAME_ROWS
    return f"{OTHER_ROWS}, but for {met} of {len(task)}" if met else OTHER_ROWS
