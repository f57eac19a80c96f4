"""Metrics of dictionaries that need no truth: each has one value on every part of a bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from veridical.dictionaries.measures.concepts import gef, surf, surf_concepts
from veridical.dictionaries.measures.effect import effect
from veridical.dictionaries.measures.probing import probing_gap, sparse_probing
from veridical.dictionaries.measures.reconstruction import active_atoms, explained_variance
from veridical.dictionaries.measures.removal import absorption, scr, tpp
from veridical.dictionaries.measures.splicing import kl, loss_recovered
from veridical.dictionaries.measures.stability import stability
from veridical.dictionaries.subject import Subject
from veridical.values.scores import Direction


@dataclass(frozen=True)
class Measure:
    """A metric of dictionaries."""

    name: str
    direction: Direction
    ask: Callable[[Subject], Tensor]
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
        Measure("effect", HIGHER, effect),
    )
}
"""Every metric by its name."""

__all__ = ["MEASURES", "Measure"]
