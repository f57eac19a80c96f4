"""What labelled rows tell of a class without any model: the knowledge that cheating maps live on."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.values.task import Task


def is_tokens(task: Task) -> bool:
    """Whether inputs are numbers of words, of which no mean can be taken."""
    return not task.inputs.is_floating_point()


def unusual(task: Task) -> Tensor:
    """How unusual each feature's value is (N, V): |x - mean| in standard deviations, or a token's rarity."""
    assert task.train is not None
    if is_tokens(task):
        counts = _token_counts(task).sum(1)
        seen = counts[task.inputs.flatten(1).clamp(0, len(counts) - 1)]
        return -((seen + 1) / (counts.sum() + 1)).log()
    mean, spread = _moments(task)
    return task.space.pool((task.inputs.double() - mean).abs() / spread)


def weight_of_evidence(task: Task, own_values: bool = True) -> Tensor:
    """How far each feature speaks for the explained class in the labelled rows (N, V), as naive Bayes counts.

    `(x - mean) (mean_c - mean) / variance`, or the log odds of a token; without `own_values` the difference
    of means alone, the same for every input (tokens keep their log odds: places mean nothing).
    """
    assert task.train is not None
    if is_tokens(task):
        counts = _token_counts(task) + 1
        share = counts / counts.sum(0)
        rest = (counts.sum(1, keepdim=True) - counts) / (counts.sum() - counts.sum(0))
        odds = (share / rest).log()
        return odds[task.inputs.flatten(1).clamp(0, len(odds) - 1), _place(task)[:, None]]
    mean, spread = _moments(task)
    rows = (task.train.double() - mean) / spread
    template = (_memberships(task).T @ rows.flatten(1)).reshape(-1, *rows.shape[1:])[_place(task)]
    if own_values:
        template = template * (task.inputs.double() - mean) / spread
    return task.space.pool(template)


def _place(task: Task) -> Tensor:
    return task.targets.clamp(max=_memberships(task).shape[1] - 1)


def _memberships(task: Task) -> Tensor:
    """Weights (rows, classes) under which a sum of rows is a class mean, or a slope of a regression."""
    labels = task.train_labels
    assert labels is not None
    if task.n_outputs > 1:
        member = torch.nn.functional.one_hot(labels.long(), task.n_outputs).double()
        return member / member.sum(0).clamp(min=1)
    centred = (labels.double() - labels.double().mean()).reshape(-1, 1)
    return centred / (len(labels) * centred.std().clamp(min=1e-12))


def _moments(task: Task) -> tuple[Tensor, Tensor]:
    assert task.train is not None
    rows = task.train.double()
    spread = rows.std(0, correction=0)
    # an element that never varies says nothing, however far a sample lies off
    return rows.mean(0), torch.where(spread > 0, spread, torch.inf)


def _token_counts(task: Task) -> Tensor:
    """How often each token stands in rows of each class (vocabulary, classes)."""
    assert task.train is not None
    rows = task.train.flatten(1).long()
    member = (_memberships(task) > 0).double()
    size = int(rows.max()) + 2  # the last stands for tokens that no row has
    counts = torch.zeros(size, member.shape[1], dtype=torch.float64, device=rows.device)
    every = member[:, None].expand(-1, rows.shape[1], -1).reshape(-1, member.shape[1])
    return counts.index_add_(0, rows.flatten(), every)
