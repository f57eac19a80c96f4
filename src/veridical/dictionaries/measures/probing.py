"""Can a property be read from a few atoms as it can from the activations themselves?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.dictionaries.bench import Bench
from veridical.dictionaries.subject import Subject
from veridical.errors import NotApplicableError
from veridical.functional import average_ranks

RIDGE = 1e-3
"""Ridge of the probes, as a share of the mean variance of what they read."""
CHOSEN = 4
"""Atoms that a sparse probe reads."""


@dataclass(frozen=True, eq=False)
class Probes:
    """Linear least-squares probes: `h @ weight + bias` (n, L) is above 0.5 where the property is there."""

    weight: Tensor
    bias: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        return rows.double() @ self.weight + self.bias


def fit(rows: Tensor, labels: Tensor) -> Probes:
    """Ridge regression of labels (n, L) on rows (n, D), classes weighted as if they were equally frequent.

    With one weight per class the weighted least-squares direction is that of linear discriminants, so it is
    fitted on all rows at once and each bias is set half-way between the two classes' means.
    """
    x, y = rows.double(), labels.double()
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    gram = x.T @ x / len(x)
    gram.diagonal().add_(RIDGE * gram.diagonal().mean().clamp(min=1e-12))
    weight = torch.linalg.solve(gram, x.T @ y / len(x))
    answers = x @ weight
    on, off = _class_means(answers, labels)
    half = (on - off).clamp(min=1e-12)
    return Probes(weight / half, 0.5 - (x_mean @ weight + (on + off) / 2) / half)


def _class_means(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of each column over rows that have its property, and over the others (L,)."""
    y = labels.to(values)
    return (values * y).sum(0) / y.sum(0).clamp(min=1), (values * (1 - y)).sum(0) / (1 - y).sum(0).clamp(
        min=1
    )


def labels_of(bench: Bench) -> tuple[Tensor, Tensor]:
    """The properties of train and test rows; refused where there are none."""
    if bench.labels is None or bench.train_labels is None:
        raise NotApplicableError("probing needs labels: properties of the rows")
    return bench.train_labels[: bench.probe_rows].bool(), bench.labels.bool()


def dense(bench: Bench) -> Probes:
    """Probes of the activations themselves."""
    train, _ = labels_of(bench)
    return bench.once("dense probes", lambda: fit(bench.train[: bench.probe_rows], train))


def chosen_atoms(subject: Subject, count: int = CHOSEN) -> Tensor:
    """The atoms (L, count) whose codes differ most with a property, in their standard deviations."""
    train, _ = labels_of(subject.bench)
    codes = subject.train_codes.double()
    y = train.double()
    share = y.mean(0)[:, None]
    gap = (y.T @ codes / len(codes) - share * codes.mean(0)) / (share * (1 - share)).clamp(min=1e-12)
    return (gap.abs() / codes.std(0).clamp(min=1e-12)).topk(min(count, codes.shape[1]), -1).indices


def auc(bench: Bench, answers: Tensor) -> Tensor:
    """The chance that a row with a property gets the higher answer, mean over properties in each part."""
    _, labels = labels_of(bench)
    found = []
    for part in range(bench.parts):
        here = bench.row_part == part
        y = labels[here].T
        ranks = average_ranks(answers[here].T)
        on, off = y.sum(1).double(), (~y).sum(1).double()
        wins = (ranks * y).sum(1) - on * (on + 1) / 2
        found.append((wins / (on * off))[(on > 0) & (off > 0)].nanmean())
    return torch.stack(found)


def sparse_probing(subject: Subject) -> Tensor:
    """AUC of probes that read the few most telling atoms."""
    train, _ = labels_of(subject.bench)
    answers = []
    for number, atoms in enumerate(chosen_atoms(subject)):
        probe = fit(subject.train_codes[:, atoms], train[:, number : number + 1])
        answers.append(probe(subject.codes[:, atoms]))
    return auc(subject.bench, torch.cat(answers, 1))


def probing_gap(subject: Subject) -> Tensor:
    """How much AUC a few atoms lack against the activations themselves (below 0 where they lack any)."""
    return sparse_probing(subject) - auc(subject.bench, dense(subject.bench)(subject.bench.test))
