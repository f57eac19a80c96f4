"""Whether a prediction held under a perturbation: what tells a slight one from a disruptive one."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.values.task import Task


def check_head(task: Task, epsilon: float | None) -> None:
    """A regression has no class that could change: the caller says how far is elsewhere (A.1.1)."""
    if task.head == "regression" and epsilon is None:
        raise InputError(
            "in a regression nothing says when a prediction has changed; give epsilon=..., in units of the "
            "output"
        )
    if epsilon is not None and not epsilon > 0:
        raise InputError(f"epsilon must be positive, got {epsilon}")


def held(task: Task, outputs: Tensor, epsilon: float | None = None) -> Tensor:
    """Whether each prediction (N,) is that of the unperturbed task.

    The same class, the same set of labels, all tokens of an answer, or for a regression |dy| <= epsilon
    (A.1.1). An answer that is not finite agrees with nothing.
    """
    clean = task.outputs
    finite = outputs.isfinite().all(-1)
    if task.head == "regression":
        place = task.targets[:, None]
        moved = (outputs.gather(1, place) - clean.gather(1, place))[:, 0].double().abs()
        return (moved <= (epsilon or 0.0)) & finite
    if task.head == "generation":
        return (outputs[:, 1] >= 1) & finite
    if task.head == "multilabel":
        return ((outputs > 0) == (clean > 0)).all(-1) & finite
    return (outputs.argmax(-1) == clean.argmax(-1)) & finite


def answers(task: Task) -> Tensor:
    """The outputs of a perturbed task, finite or not; counted to nobody, as a task's own outputs are."""

    def ask() -> Tensor:
        with task.session():
            return task.predictor.chunk(task.inputs, task.side)

    outputs: Tensor = task.uncounted(ask)
    return outputs


def changes_that_matter(task: Task) -> float:
    """The share of changed predictions that counts as disrupted: min(0.5, 0.8 (1 - 1/C))."""
    classes = task.n_outputs if task.head in ("multiclass", "binary") else 0
    return min(0.5, 0.8 * (1 - 1 / classes)) if classes else 0.5


def share_changed(kept: Tensor) -> Tensor:
    """The share of predictions that did not hold."""
    return 1 - kept.to(torch.float64).mean(-1)
