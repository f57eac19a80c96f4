"""What fine-tuning leaves as it was: answers under ever stronger masks, and explanations (D.3, D.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from veridical.explainers.function import as_explainer
from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.finetuning import finetune
from veridical.fidelity.judging import Reference
from veridical.fidelity.robustness import ORIGINAL, answer_shares
from veridical.functional import spearman
from veridical.rng import Key
from veridical.task import Task

MASKED = tuple(percent / 100 for percent in range(5, 55, 5))


@dataclass(frozen=True, eq=False)
class BoundaryStudy:
    """Accuracy and agreement with the original's answer to whole inputs, for several fine-tuning betas."""

    shares: tuple[float, ...]
    accuracy: Mapping[str, tuple[float, ...]]
    agreement: Mapping[str, tuple[float, ...]]

    def __repr__(self) -> str:
        width = max(map(len, self.accuracy))
        lines = [f"{'masked':<{width}}  " + "  ".join(f"{share:>11.0%}" for share in self.shares)]
        for name, right in self.accuracy.items():
            pairs = zip(right, self.agreement[name], strict=True)
            lines.append(f"{name:<{width}}  " + "  ".join(f"{100 * a:5.1f} {100 * b:5.1f}" for a, b in pairs))
        return "\n".join(lines)


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
    right, same = answer_shares(task, models, shares, draws, reference, Key(seed) / "boundary")
    return BoundaryStudy(tuple(shares), right, same)


def map_agreement(task: Task, finetuned: Finetuned, explainer: Any = "saliency", seed: int = 0) -> Tensor:
    """Rank correlation (N,) of the maps of the original and of the fine-tuned model for the same targets."""
    method = as_explainer(explainer)
    before, after = method(task, Key(seed)), method(finetuned.on(task), Key(seed))
    return spearman(before.values, after.values, where=before.valid)
