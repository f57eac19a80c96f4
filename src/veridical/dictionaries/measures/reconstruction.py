"""How well activations are rebuilt, with how many atoms."""

from __future__ import annotations

from torch import Tensor

from veridical.dictionaries.subject import Subject


def explained_variance(subject: Subject) -> Tensor:
    """`1 - sum |h - rebuilt|^2 / sum |h - mean|^2` in each part; the mean is that of the train rows."""
    bench = subject.bench
    left = (bench.test - subject.dictionary.decode(subject.codes)).double().square().sum(-1)
    away = (bench.test - bench.train.mean(0)).double().square().sum(-1)
    return 1 - bench.means(left) / bench.means(away)


def active_atoms(subject: Subject) -> Tensor:
    """L0: atoms that are active in a row, on average."""
    return subject.bench.means((subject.codes != 0).sum(-1))
