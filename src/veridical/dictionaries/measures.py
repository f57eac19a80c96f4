"""Metrics of dictionaries that need no truth: each has one value on every part of a bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from veridical.concepts.measures import judge, least_squares_importances
from veridical.concepts.splitting import Split
from veridical.core.key import Key, permutation
from veridical.dictionaries.bench import Subject
from veridical.dictionaries.planted import mcc
from veridical.dictionaries.probing import absorption, disentanglement, probing_gap, scr, sparse_probing, tpp
from veridical.errors import NotApplicableError
from veridical.gef.codes import LayerCodes
from veridical.values.scores import Direction


def explained_variance(subject: Subject) -> Tensor:
    """`1 - sum |h - rebuilt|^2 / sum |h - mean|^2` in each part; the mean is that of the train rows."""
    bench = subject.bench
    left = (bench.test - subject.dictionary.decode(subject.codes)).double().square().sum(-1)
    away = (bench.test - bench.train.mean(0)).double().square().sum(-1)
    return 1 - _ratio(bench.means(left), bench.means(away))


def _ratio(above: Tensor, below: Tensor, least: float = 0.0) -> Tensor:
    """The ratio of two means over parts, as values of parts (parts,) whose mean it is; NaN if undefined.

    `r + (a_p - r b_p) / b`, to first order what each part would make of it: a mean of the parts' own ratios
    would be biased where parts are small.
    """
    ratio = above.mean() / below.mean()
    found = ratio + (above - ratio * below) / below.mean()
    return found if float(below.mean()) > least else torch.full_like(found, torch.nan)


def active_atoms(subject: Subject) -> Tensor:
    """L0: atoms that are active in a row, on average."""
    return subject.bench.means((subject.codes != 0).sum(-1))


def dead_atoms(subject: Subject) -> Tensor:
    """The share of atoms that are active in no row of a part."""
    active = _by_part(subject)
    return (active == 0).double().mean(1)


def dense_atoms(subject: Subject) -> Tensor:
    """The share of atoms that are active in more than a tenth of a part's rows; `Subject.density` has all."""
    return (_by_part(subject) > 0.1).double().mean(1)


def _by_part(subject: Subject) -> Tensor:
    """The share of a part's rows in which each atom is active (parts, atoms)."""
    part = subject.bench.row_part
    return torch.stack([(subject.codes[part == p] != 0).double().mean(0) for p in range(subject.bench.parts)])


def loss_recovered(subject: Subject, without: str = "mean") -> Tensor:
    """`(L_without - L_rebuilt) / (L_without - L)`: 1 without loss, 0 as if there was no layer.

    In its place is then the mean of the train rows, or zero.
    """
    losses = subject.bench.losses
    rebuilt = subject.bench.means(subject.rebuilt[0], samples=True)
    return _ratio(losses[without] - rebuilt, losses[without] - losses["model"], 1e-6)


def kl(subject: Subject) -> Tensor:
    """KL(model || model through the dictionary) over classes or next tokens, in nats."""
    return subject.bench.means(subject.rebuilt[1], samples=True)


def surf(subject: Subject) -> Tensor:
    """SURF_MAE: how far the outputs made of codes and the head's own importances are from the model's."""
    parts = subject.bench.head_split
    concepts = subject.dictionary.concepts(parts.head)
    return _mae(subject, parts, concepts)


def surf_concepts(subject: Subject) -> Tensor:
    """The part of SURF_MAE that is the atoms' fault: importances are the best that the train rows allow."""
    parts = subject.bench.head_split
    concepts = subject.dictionary.concepts(parts.head)
    best = least_squares_importances(concepts, parts.train(), parts.head)
    return _mae(subject, parts, concepts.with_importances(best))


def gef(subject: Subject) -> Tensor:
    """GEF of codes: whether they move as the model moves when its weights get noise."""
    bench = subject.bench
    task = bench.task[: bench.gef_samples]
    codes = LayerCodes(subject.dictionary, bench.layer, axis=bench.axis)
    scores = bench.gef(task, codes, Key(bench.seed) / "gef")
    return bench.means(scores.values, samples=True)


def _mae(subject: Subject, parts: Split, concepts: object) -> Tensor:
    found = judge(concepts, parts.test(), parts.head, companions=False)  # type: ignore[arg-type]
    return subject.bench.means(found.values["mae"], samples=True)


MATCHED = 512
"""Atoms that are matched at most: the time of a matching grows with the cube of the width."""


def stability(subject: Subject) -> Tensor:
    """The mean cosine of atoms to their match in a dictionary trained with another seed.

    Of a wider dictionary 512 atoms, picked at random, are matched with all of the other's.
    """
    if subject.sibling is None:
        raise NotApplicableError("stability needs a second dictionary, trained with another seed")
    own = subject.dictionary.decoder
    some = permutation(Key(0), torch.zeros(1, dtype=torch.int64), 0, len(own))[0][:MATCHED]
    value = mcc(subject.sibling.decoder, own[some.to(own.device)])
    return torch.full((subject.bench.parts,), value, dtype=torch.float64)


@dataclass(frozen=True)
class Measure:
    """A metric of dictionaries."""

    name: str
    direction: Direction
    evaluate: Callable[[Subject], Tensor]
    """Gives one value per part of the bench (parts,)."""


HIGHER, LOWER = Direction.HIGHER, Direction.LOWER
MEASURES = {
    measure.name: measure
    for measure in (
        Measure("explained variance", HIGHER, explained_variance),
        Measure("active atoms", LOWER, active_atoms),
        Measure("dead atoms", LOWER, dead_atoms),
        Measure("dense atoms", LOWER, dense_atoms),
        Measure("loss recovered", HIGHER, loss_recovered),
        Measure("loss recovered from zero", HIGHER, partial(loss_recovered, without="zero")),
        Measure("kl", LOWER, kl),
        Measure("surf", LOWER, surf),
        Measure("surf concepts", LOWER, surf_concepts),
        Measure("gef", HIGHER, gef),
        Measure("sparse probing", HIGHER, sparse_probing),
        Measure("probing gap", HIGHER, probing_gap),
        Measure("tpp", HIGHER, tpp),
        Measure("scr", HIGHER, scr),
        Measure("absorption", LOWER, absorption),
        Measure("disentanglement", HIGHER, disentanglement),
        Measure("stability", HIGHER, stability),
    )
}
"""Every metric by its name."""

__all__ = ["MEASURES", "Measure"]
