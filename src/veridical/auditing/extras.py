"""Beside the verdict: where chosen maps stand, what prompts hide, what concepts are worth."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from veridical.auditing.effort import Effort
from veridical.auditing.sampling import some_of
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import VeridicalError
from veridical.metrics import registry
from veridical.models.predictor import take_side
from veridical.qge import Standing, standing
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.concepts import Comparison
    from veridical.data.prompt_checks import PromptChecks

_CONCEPTS = ("pca", "kmeans", "nmf", "cdisco")
"""Concept methods that an audit judges when nobody chose: quick ones, fitted on whole samples."""
_CONCEPT_ROWS = 1000
"""Samples that concepts are judged on, and twice as many train rows to fit them on: a row each."""


def prompts_of(task: Task, evaluation: Evaluation, seed: int) -> PromptChecks | None:
    """What is known of prompts beside their scores; None for other tasks."""
    if task.head != "generation":
        return None  # spares everybody else the import
    from veridical.data.generation import Generation
    from veridical.data.prompt_checks import prompt_checks

    if not isinstance(task, Generation):
        return None
    return prompt_checks(task, explainers=evaluation.explainers, metrics=evaluation.metrics, seed=seed)


def standings_of(
    task: Task, evaluation: Evaluation, who: str | None, effort: Effort, seed: int, notes: list[str]
) -> dict[str, Standing]:
    """Where the chosen explanation stands among random rankings, on a few samples."""
    explanation = None if who is None else evaluation.explanations.get(who)
    if who is None or explanation is None or not effort.standing_samples:
        return {}
    few = slice(0, min(effort.standing_samples, len(explanation)))
    metric = registry.make("pixel_flipping", steps=min(effort.flip_steps, task.space.n_features))
    try:
        found = standing(task[few], metric, explanation.take(few), draws=effort.standing_draws, seed=seed)
    except VeridicalError as error:
        notes.append(f"The standing of {who} could not be found: {error}")
        return {}
    return {who: found}


def concepts_of(
    task: Task, methods: Mapping[str, Any] | None, seed: int, evaluation: Evaluation, notes: list[str]
) -> Comparison | None:
    """SURF's verdict on concept methods, on more samples than an audit explains: each costs one row."""
    from veridical.concepts import compare, split  # few programs ask for concepts

    task = some_of(task, _CONCEPT_ROWS, seed)
    try:
        if methods is not None:
            return compare(task, methods, seed, seeds=3) if methods else None
        if task.train is None or not task.predictor.differentiable:
            return None
        parts = split(task)
        one = torch.zeros(1, dtype=torch.int64, device=task.device)
        rows = keyed.permutation(Key(seed) / "audit" / "train", one, 0, len(task.train))[0]
        rows = rows[: 2 * _CONCEPT_ROWS].sort().values
        train = parts.collect(task.train[rows], take_side(task.train_side, rows))
        return compare(train, _CONCEPTS, seed, seeds=3, test=parts.test(), head=parts.head)
    except VeridicalError as error:
        if methods is None:
            notes.append(f"Concepts were not judged: {error}")
            return None
        evaluation.failures.append(Failure("concepts", None, str(error), traceback.format_exc()))
        return None
