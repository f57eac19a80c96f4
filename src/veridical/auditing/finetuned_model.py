"""The judge of removal tests: a model fine-tuned under masks where masks disturb the original."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from veridical.auditing.check import Checks
from veridical.auditing.effort import Effort
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import VeridicalError
from veridical.fidelity import Finetuned, RobustnessTable, finetune, robustness_table
from veridical.fidelity.finetuning import why_no_finetuning
from veridical.fidelity.robustness import ORIGINAL, TUNED
from veridical.models.predictor import take_side
from veridical.values.task import Task

BETA = 0.1
"""The share of features the judge learns to miss, at least one: the published default."""
FINETUNING_RATE = 1e-3
"""Ten times the published rate, at which few epochs leave most models as they were."""


def finetuned_judge(
    task: Task,
    train: Any,
    checks: Checks,
    effort: Effort,
    seed: int,
    progress: bool | None,
    notes: list[str],
) -> tuple[Finetuned | None, RobustnessTable | None]:
    """The judge of removal tests: a fine-tuned model where masks disturb the original and rows are there."""
    if task.head in ("regression", "generation") or not checks.masking_hurts:
        notes.append(
            "F-Fidelity judges with the original model (RFid): "
            + (
                f"a {task.head} has no right class."
                if task.head in ("regression", "generation")
                else "masks hardly disturb it."
                if any(check.name == "masking" for check in checks.checks)
                else "there is one feature, and none is left when it is masked."
            )
        )
        return None, None
    reason = why_no_finetuning(task, train)
    if reason is not None:
        notes.append(
            f"F-Fidelity judges with the original model (RFid), since it cannot be fine-tuned: {reason}."
        )
        return None, None
    if not effort.training_rows:
        notes.append(
            f"F-Fidelity judges with the original model (RFid): effort '{effort.name}' leaves no time to "
            "fine-tune."
        )
        return None, None
    try:
        rows = _training_rows(task, train, effort.training_rows, seed)
        made = finetune(
            task,
            **rows,
            beta=BETA,
            epochs=effort.training_epochs,
            rate=FINETUNING_RATE,
            seed=seed,
            progress=progress,
        )
        reason = made.held_out.why_not
        if reason is not None:
            notes.append(f"F-Fidelity judges with the original model (RFid): {reason}.")
            return None, None
        shares = (0.0, BETA / 2, BETA)
        table = robustness_table(
            task, made, shares=shares, reference="prediction", seed=seed, progress=progress, **rows
        )
    except VeridicalError as error:
        notes.append(f"F-Fidelity judges with the original model (RFid), since fine-tuning failed: {error}.")
        return None, None
    notes.append(_said_of(table))
    return made, table


def _training_rows(task: Task, train: Any, most: int, seed: int) -> dict[str, Any]:
    """The rows to fine-tune on with their side inputs: all, or as many random ones as the effort affords."""
    given, labels = train if isinstance(train, tuple) else (train, None)
    side: Any = None
    if train is None:
        given, labels, side = task.train, task.train_labels, task.train_side
    if len(given) > most:
        order = keyed.permutation(
            Key(seed) / "audit" / "training rows", torch.zeros(1, dtype=torch.int64), 0, len(given)
        )
        index = order[0, :most]
        given = given[index.to(given.device) if isinstance(given, Tensor) else index.numpy()]
        if labels is not None:
            labels = labels[index.to(labels.device) if isinstance(labels, Tensor) else index.numpy()]
        side = None if side is None else take_side(side, index.to(task.device))
    return {"train": given if labels is None else (given, labels), "train_side": side}


def _said_of(table: RobustnessTable) -> str:
    """What fine-tuning did to the model's stand against masks."""
    original, tuned = table.accuracy[ORIGINAL], table.accuracy[TUNED]
    lost, back = original[0] - original[-1], tuned[-1] - original[-1]
    said = (
        f"F-Fidelity judges with a model fine-tuned under masks, which wins back {100 * back:.1f} of the "
        f"{100 * lost:.1f} points of agreement that masks cost the original"
    )
    if back < lost / 2:
        return f"{said}: what is left is lost information or too short a training, so read it with reserve."
    return f"{said}."
