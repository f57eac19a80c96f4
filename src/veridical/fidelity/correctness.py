"""Which answer is right: the label where the task has labels, otherwise the model's own prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from veridical.api import as_explanation
from veridical.errors import InputError, ShapeError
from veridical.values.explanation import Explanation
from veridical.values.task import Task

Reference = Literal["label", "prediction"]


def check_labels(labels: Tensor, task: Task, what: str = "labels") -> Tensor:
    """Labels in the form the head's loss wants, or an error that says how they miss the label space."""
    head, outputs = task.head, task.n_outputs
    if head in ("multiclass", "binary"):
        if labels.dim() == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.dim() != 1:
            raise ShapeError(
                f"{what} have shape {tuple(labels.shape)}; a {head} head wants one class index per row. "
                "For several true classes per row say head='multilabel'"
            )
        whole = labels.long()
        if labels.is_floating_point() and not bool((whole == labels).all()):
            raise InputError(
                f"{what} are not whole numbers; a {head} head wants class indices. Say head='regression' to "
                "judge numbers"
            )
        if int(whole.min()) < 0 or int(whole.max()) >= outputs:
            raise InputError(
                f"{what} run from {int(whole.min())} to {int(whole.max())}, the model has {outputs} outputs "
                f"(classes 0 to {outputs - 1}); renumber the labels to match the model's head"
            )
        return whole
    shaped = labels[:, None] if labels.dim() == 1 and outputs == 1 else labels
    if tuple(shaped.shape[1:]) != (outputs,):
        raise ShapeError(
            f"{what} have shape {tuple(labels.shape)}; a {head} head with {outputs} outputs wants (rows, "
            f"{outputs})"
        )
    if head == "multilabel" and not bool(((shaped == 0) | (shaped == 1)).all()):
        raise InputError(f"{what} of a multilabel head are 0 or 1 for every output")
    return shaped.to(task.outputs.dtype)


def predicted_labels(outputs: Tensor, task: Task) -> Tensor:
    """A model's outputs as labels: its class, the labels it holds true, or its numbers."""
    if task.head in ("multiclass", "binary"):
        return outputs.argmax(-1)
    return (outputs > 0).to(outputs.dtype) if task.head == "multilabel" else outputs


def reference_labels(task: Task, reference: Reference | None) -> Tensor:
    """What counts as the right answer y_i: (N,) class indices, or (N, C) numbers."""
    if reference == "prediction" or (reference is None and task.labels is None):
        return predicted_labels(task.outputs, task)
    if task.labels is None:
        raise InputError(
            "reference='label' needs labels; give the task labels=..., or reference='prediction'"
        )
    return check_labels(task.labels, task)


def correctness_of(answers: Tensor, truth: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """The indicator and the probability of the right answer, (N, M) each, of answers (N, M, 2C).

    Answers are probabilities (a regression's: numbers), and behind them how often each output is predicted
    over the rows of the fill. Of a multilabel head the explained label alone is judged. A regression has no
    right class: both are minus the absolute error of the explained output. Of a generation both are the
    response.
    """
    if task.head == "generation":
        response = answers[..., 0].double()
        return response, response
    answers, predicted = answers.chunk(2, -1)
    if task.head in ("multiclass", "binary"):
        own = truth[:, None, None].expand(-1, answers.shape[1], 1)
        return predicted.gather(-1, own)[..., 0].double(), answers.gather(-1, own)[..., 0].double()
    index = task.targets[:, None, None].expand(-1, answers.shape[1], 1)
    own = answers.gather(-1, index)[..., 0].double()
    wanted = truth.gather(1, task.targets[:, None]).double()
    if task.head == "regression":
        error = -(own - wanted).abs()
        return error, error
    said = predicted.gather(-1, index)[..., 0].double()
    return torch.where(wanted > 0.5, said, 1 - said), torch.where(wanted > 0.5, own, 1 - own)


def accuracy(answers: Tensor, truth: Tensor, task: Task) -> float:
    """The share of right answers (of right labels for a multilabel head; R^2 for a regression)."""
    if task.head == "regression":
        spread = (truth - truth.mean(0)).double().square().sum()
        return float(1 - (answers - truth).double().square().sum() / spread.clamp(min=1e-300))
    return float((answers == truth).double().mean())


def chance_level(truth: Tensor, task: Task) -> float:
    """The accuracy of always giving the commonest answer (0 for a regression's R^2)."""
    if task.head == "regression":
        return 0.0
    if task.head == "multilabel":
        share = truth.double().mean(0)
        return float(torch.maximum(share, 1 - share).mean())
    return float(torch.bincount(truth).max()) / len(truth)


def at_chance(answers: Tensor, truth: Tensor, task: Task) -> str | None:
    """Why these answers are no better than the commonest one, or None if they are (one-sided, 5%)."""
    reached, level = accuracy(answers, truth, task), chance_level(truth, task)
    slack = 0.0
    if task.head in ("multiclass", "binary"):
        slack = 1.645 * math.sqrt(level * (1 - level) / len(truth))
    if reached > level + slack or reached >= 1:
        return None
    return (
        f"it is right on {reached:.1%} of {len(truth)} rows, and always giving the commonest answer on "
        f"{level:.1%}"
    )


def refuse_chance(task: Task, reference: Reference | None) -> None:
    """Refuse to rank explainers by a model that answers no better than chance."""
    # one sample alone says nothing of chance
    if task.labels is None or reference == "prediction" or len(task) == 1:
        return
    reason = at_chance(predicted_labels(task.outputs, task), reference_labels(task, reference), task)
    if reason is not None:
        raise InputError(
            f"explainers cannot be ranked by a model whose answers are at chance: {reason}. Removing "
            "features cannot make such answers worse; give a trained model, or labels in its order"
        )


@dataclass(frozen=True, eq=False)
class StudiedMaps:
    """A task explained for its right answers, its maps, and what must be said of them."""

    task: Task
    maps: Explanation
    truth: Tensor
    notes: tuple[str, ...]


def with_reference_targets(task: Task, reference: Reference | None) -> tuple[Task, Tensor]:
    """The task explained for the right answers, and these."""
    truth = reference_labels(task, reference)
    return (task.with_targets(truth) if task.head in ("multiclass", "binary") else task), truth


def studied_maps(task: Task, explanation: Any, reference: Reference | None, seed: int) -> StudiedMaps:
    """Explain the right answers; samples without a map are left out, as a score of theirs would be NaN."""
    judged, truth = with_reference_targets(task, reference)
    maps = as_explanation(explanation, judged, seed).matching(judged)
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
    return StudiedMaps(judged, maps, truth, tuple(notes))
