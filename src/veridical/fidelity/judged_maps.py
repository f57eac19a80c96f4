"""What a study asks about: the task with the right answers as targets, and the maps that are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from veridical.api import as_explanation
from veridical.errors import InputError
from veridical.fidelity.correctness import Reference, judged_answers
from veridical.values.explanation import Explanation
from veridical.values.task import Task


@dataclass(frozen=True, eq=False)
class JudgedMaps:
    """A task explained for its right answers, its maps, and what must be said of them."""

    task: Task
    maps: Explanation
    truth: Tensor
    notes: tuple[str, ...]


def right_answers(task: Task, reference: Reference | None) -> tuple[Task, Tensor]:
    """The task explained for the right answers, and these."""
    truth = judged_answers(task, reference)
    return (task.with_targets(truth) if task.head in ("multiclass", "binary") else task), truth


def judged_maps(
    task: Task, explanation: Any, reference: Reference | None, seed: int, cache: str | Path | None = None
) -> JudgedMaps:
    """Explain the right answers; samples without a map are left out, as a score of theirs would be NaN."""
    judged, truth = right_answers(task, reference)
    maps = as_explanation(explanation, judged, seed, cache).matching(judged)
    notes = []
    missing = maps.missing
    if bool(missing.any()):
        if bool(missing.all()):
            raise InputError(f"none of the {len(task)} samples has a map: all values are NaN")
        notes.append(f"{int(missing.sum())} of {len(task)} samples have no map and are left out")
        there = (~missing).nonzero()[:, 0]
        judged, maps, truth = judged[there], maps.take(there), truth[there]
    if task.head in ("multiclass", "binary"):
        other = int((maps.targets.to(truth.device) != truth).sum())
        if other:
            notes.append(f"{other} maps explain another class than the one judged")
    return JudgedMaps(judged, maps, truth, tuple(notes))
