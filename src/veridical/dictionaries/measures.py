"""Metrics of dictionaries that need no truth: each has one value on every part of a bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from veridical.concepts.measures import judge, least_squares_importances
from veridical.concepts.splitting import Split
from veridical.core.key import Key, permutation
from veridical.dictionaries.bench import Subject, losses
from veridical.dictionaries.planted import mcc
from veridical.dictionaries.probing import absorption, probing_gap, scr, sparse_probing, tpp
from veridical.errors import NotApplicableError
from veridical.gef.codes import LayerCodes
from veridical.values.scores import Direction


def explained_variance(subject: Subject) -> Tensor:
    """`1 - sum |h - rebuilt|^2 / sum |h - mean|^2` in each part; the mean is that of the train rows."""
    bench = subject.bench
    left = (bench.test - subject.dictionary.decode(subject.codes)).double().square().sum(-1)
    away = (bench.test - bench.train.mean(0)).double().square().sum(-1)
    return 1 - bench.means(left) / bench.means(away)


def active_atoms(subject: Subject) -> Tensor:
    """L0: atoms that are active in a row, on average."""
    return subject.bench.means((subject.codes != 0).sum(-1))


def loss_recovered(subject: Subject) -> Tensor:
    """`(L_mean - L_rebuilt) / (L_mean - L)`: 0 where the layer might as well be its mean, 1 without loss."""
    bench = subject.bench
    rebuilt = losses(bench, subject.rebuilt_outputs)
    clean = losses(bench, bench.task.outputs)
    given = (bench.losses_without_layer, clean, rebuilt)
    without, clean, rebuilt = (bench.means(each, samples=True) for each in given)
    gap = without - clean
    return torch.where(gap > 1e-6, (without - rebuilt) / gap, torch.nan)


def kl(subject: Subject) -> Tensor:
    """KL(model || model through the dictionary) over classes, in nats."""
    changed = subject.rebuilt_outputs.float().log_softmax(-1)
    own = subject.bench.task.outputs.float().log_softmax(-1)
    each = kl_div(changed, own, reduction="none", log_target=True).sum(-1)
    return subject.bench.means(each, samples=True)


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
        Measure("loss recovered", HIGHER, loss_recovered),
        Measure("kl", LOWER, kl),
        Measure("surf", LOWER, surf),
        Measure("surf concepts", LOWER, surf_concepts),
        Measure("gef", HIGHER, gef),
        Measure("sparse probing", HIGHER, sparse_probing),
        Measure("probing gap", HIGHER, probing_gap),
        Measure("tpp", HIGHER, tpp),
        Measure("scr", HIGHER, scr),
        Measure("absorption", LOWER, absorption),
        Measure("stability", HIGHER, stability),
    )
}
"""Every metric by its name."""

__all__ = ["MEASURES", "Measure"]
