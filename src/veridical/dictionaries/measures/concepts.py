"""Dictionaries as explanations: SURF and its split, and GEF of codes."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.concepts.measures import judge, least_squares_importances
from veridical.concepts.splitting import Split, split
from veridical.core.key import Key
from veridical.dictionaries.bench import Bench
from veridical.dictionaries.subject import Subject
from veridical.errors import NotApplicableError
from veridical.gef.codes import LayerCodes


def surf(subject: Subject) -> Tensor:
    """SURF_MAE: how far the outputs made of codes and the head's own importances are from the model's."""
    parts = _split(subject.bench)
    concepts = subject.dictionary.concepts(parts.head)
    return _mae(subject, parts, concepts)


def surf_concepts(subject: Subject) -> Tensor:
    """The part of SURF_MAE that is the atoms' fault: importances are the best that the train rows allow."""
    parts = _split(subject.bench)
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


def _split(bench: Bench) -> Split:
    """The task at its head, if the judged layer is what the head reads."""

    def find() -> Split:
        parts = split(bench.task)
        seen = parts.test().pooled
        mine = bench.states.mean(1)
        if seen.shape != mine.shape or not torch.allclose(seen.float(), mine, rtol=1e-3, atol=1e-4):
            raise NotApplicableError(f"layer '{bench.layer}' is not what the model's linear head reads")
        return parts

    return bench.once("split", find)
