"""Checks of the model alone, before any explanation: accuracy, masking, assumptions of metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from veridical.auditing.effort import Effort, effort_of, some_of
from veridical.auditing.evidence import MIN_SAMPLES
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import NotApplicableError
from veridical.explainers.diagnostics import difference_from_empty
from veridical.fidelity.correctness import accuracy, at_chance, chance_level, check_labels, predicted_labels
from veridical.fidelity.removal import budget
from veridical.fidelity.robustness import LITTLE_LOSS, masked_predictions
from veridical.functional.responses import grid_step
from veridical.gef import Assumptions, assumptions
from veridical.perturb.fills import Fill
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given
from veridical.values.task import Task

LABELLED = 1000
"""Samples on which accuracy is measured: a row each."""
WATCHED = 32
"""Samples on which the assumptions of metrics are checked."""
ROBUST_SHARE = 0.1
MASK_DRAWS = 5
"""Random masks of a sample under which its class may change."""
NOTED = 8
"""Samples, and masks of each, on which a summary of reference rows is compared with all of them."""
OFTEN = 0.25
"""A share of failures from which an assumption counts as broken."""


@dataclass(frozen=True)
class Check:
    """One question about the model, what was measured, a sentence; `passed` is None where it only informs."""

    name: str
    passed: bool | None
    value: float
    sentence: str


@dataclass(frozen=True, eq=False)
class Checks:
    """All checks, and the assumptions they were taken from."""

    checks: tuple[Check, ...]
    masking_loss: float
    assumptions: Assumptions | None

    @property
    def masking_hurts(self) -> bool:
        """Whether masked inputs disturb the model, so that removal tests need a fine-tuned model."""
        return self.masking_loss > LITTLE_LOSS

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is False)


def check_model(
    task: Task,
    whole: Task | None = None,
    effort: str | Effort = "quick",
    seed: int = 0,
    assumed: bool = True,
) -> Checks:
    """Check the model alone, before any explanation: accuracy, masking, assumptions of metrics.

    Parameters
    ----------
    task : Task
        The model and the samples to be explained.
    whole : Task, optional
        More samples of the same model, on which accuracy is measured; `task` by default.
    effort : str or Effort
        How much the check of the assumptions does.
    seed : int
        Seed of all draws.
    assumed : bool
        Whether the assumptions of metrics are checked too, which evaluates far more rows than the rest.

    Returns
    -------
    Checks
        One `Check` per question, `failed` among them.

    Examples
    --------
    >>> import veridical as vd
    >>> [check.name for check in vd.auditing.check_model(vd.tasks.load("known/linear")).failed]
    []
    """
    whole = task if whole is None else whole
    effort = effort_of(effort, task)
    loss, masking = _masking(task, Key(seed) / "audit" / "masking")
    watched = _assumptions(task, effort, seed) if assumed else None
    found = [*_steadiness(task), *_accuracy(some_of(whole, LABELLED, seed)), *_variety(task), *masking]
    return Checks((*found, *_assumption_checks(watched)), loss, watched)


def moves_by(task: Task) -> str:
    """How far the outputs of a model move from call to call, in words; empty where they stay."""
    return f"the model's outputs move by {task.moves:.0%} of their size from call to call" * bool(task.moves)


def rows_of_checks(task: Task, whole: Task, given: Fill) -> int:
    """How many rows the checks without assumptions, and `summary_note`, evaluate at most."""
    fills = task.fill.repeats_on(task)
    summary = NOTED**2 * (fills + given.repeats_on(task)) * (whole.fill is not given)
    return len(task) * (2 + MASK_DRAWS * fills) + min(LABELLED, len(whole)) + summary


def summary_note(task: Task, given: Fill, key: Key) -> str:
    """How far the mean outputs under the task's fill, a summary, are from those under the given one."""
    one, draws = torch.zeros(1, dtype=torch.int64), torch.arange(NOTED)
    some, masks = task[:NOTED], keyed.uniform(key, one, draws, task.space.n_features)
    rule = Given((masks[0] < 0.5).to(task.device))
    short, long = (probe(some, rule, fill=fill, key=key) for fill in (task.fill, given))
    error = float((short - long).square().mean().sqrt() / long.std().clamp(min=1e-12))
    return (
        f"Removed columns take the values of {task.fill.repeats_on(task)} weighted rows that stand for "
        f"{given.repeats_on(task)} reference rows; mean outputs then differ by {error:.1%} of their spread "
        "(effort='standard' takes all)."
    )


def why_no_verdict(task: Task) -> str:
    """Why no explanation of these samples can be judged, known before any is made; empty where it can."""
    if len(task) < MIN_SAMPLES:
        return f"{len(task)} samples are too few; give at least {MIN_SAMPLES}, better 64"
    if task.moves:
        return moves_by(task)
    step = grid_step(task.predictor.rounding or task.outputs.dtype) * float(task.outputs.abs().max())
    if float((task.outputs - task.outputs[:1]).abs().max()) > step:
        return ""
    same = float(difference_from_empty(task, Key(0) / "audit").abs().max()) <= step
    return f"the model gives all {len(task)} samples the same output, whatever is masked" * same


def _steadiness(task: Task) -> list[Check]:
    words = f"Evaluated again, {moves_by(task)}: chance or the other rows of a batch are in every score."
    return [Check("steadiness", False, task.moves, words)] if task.moves else []


def _accuracy(task: Task) -> list[Check]:
    if task.labels is None:
        words = "No labels were given, so nobody knows how often the model is right."
        return [Check("accuracy", None, math.nan, words)]
    labels = check_labels(task.labels, task)
    predicted = predicted_labels(task.outputs, task)
    value = accuracy(predicted, labels, task)
    if task.head == "regression":
        words = f"The model explains {value:.0%} of the variance of the labels of {len(task)} samples."
        return [Check("accuracy", value > 0, value, words)]
    reason = at_chance(predicted, labels, task)
    if reason is None:
        words = f"The model is right on {value:.1%} of the {len(task)} samples."
        return [Check("accuracy", True, value, words)]
    # a few samples that do not show it are no proof of the contrary
    worse = value <= chance_level(labels, task)
    words = f"The model {'is not' if worse else 'is not shown to be'} better than chance: {reason}."
    return [Check("accuracy", False if worse else None, value, words)]


def _variety(task: Task) -> list[Check]:
    if task.head not in ("multiclass", "binary"):  # of several labels the strongest may well be the same
        return []
    share = float(task.predictions.bincount(minlength=task.n_outputs).max()) / len(task)
    words = f"The model gives all {len(task)} samples the same class."
    return [Check("variety", False, share, words)] if share == 1 else []


def _masking(task: Task, key: Key) -> tuple[float, list[Check]]:
    """The share of predictions that change when a tenth of the features, or one, is masked at random."""
    features = task.space.counts(len(task)).median()
    if task.head in ("regression", "generation") or int(features) < 2:
        return 0.0, []
    masked = int(budget(features, ROBUST_SHARE)) / int(features)
    predicted = masked_predictions(task, (ROBUST_SHARE,), MASK_DRAWS, key)
    same = predicted[:, :, 0] == predicted_labels(task.outputs, task)[:, None]
    loss = 1 - float(same.double().mean())
    if loss <= LITTLE_LOSS:
        text = "it stands masks."
    else:
        text = "removal tests on the original model measure this weakness too."
    text = f"Masking {masked:.0%} of the features changes {loss:.1%} of its predictions: {text}"
    return loss, [Check("masking", loss <= LITTLE_LOSS, loss, text)]


def _assumptions(task: Task, effort: Effort, seed: int) -> Assumptions | None:
    side = int(task.inputs.shape[-1]) if task.modality == "image" else 1
    try:
        return assumptions(
            task[:WATCHED],
            levels=5,
            draws=2,
            patches=(max(1, side // 8),),
            mask_steps=5,
            seed=seed,
            search_draws=effort.search_draws,
            layer_steps=effort.layer_steps,
        )
    except NotApplicableError:
        return None


def _assumption_checks(watched: Assumptions | None) -> list[Check]:
    if watched is None:
        return []
    robust = float(watched.robustness_fails.any(-1).double().mean())
    same = float(watched.sensitivity_fails.double().mean())
    masks = max(float(w.not_monotone.double().mean()) for w in watched.masking)
    words = {
        "robustness": f"Slight input noise changes the class of {robust:.1%} of the samples; robustness "
        "metrics assume that it changes none.",
        "sensitivity": f"After all layers were randomised {same:.1%} of the samples keep their class "
        f"({watched.chance:.1%} by luck); randomisation metrics assume that they lose it.",
        "monotonicity": f"Masking more moves the output back for up to {masks:.1%} of the samples; flipping "
        "curves assume a steady fall.",
    }
    return [
        Check("robustness", robust < OFTEN, robust, words["robustness"]),
        Check("sensitivity", max(0.0, same - watched.chance) < OFTEN, same, words["sensitivity"]),
        Check("monotonicity", masks < OFTEN or None, masks, words["monotonicity"]),
    ]
