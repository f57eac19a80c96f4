"""Estimators of whole texts, explained in their words: a removed word is left out of the text."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veridical.data.models import LoadedModel
from veridical.data.request import Request
from veridical.data.texts import all_texts
from veridical.errors import InputError
from veridical.models.estimators import class_names, estimator_response
from veridical.perturb.fills import Token
from veridical.values.space import Space
from veridical.values.task import Task

MOST_WORDS = 256
"""Words of a text that are explained; what comes after them is cut off."""


def takes_texts(model: Any) -> bool:
    """Whether an estimator begins with one of scikit-learn's vectorisers of texts."""
    steps = getattr(model, "steps", None)
    return takes_texts(steps[0][1]) if steps else hasattr(model, "build_analyzer")


class WordFunction:
    """An estimator of texts as a function of rows of word numbers; number 0 is no word."""

    def __init__(self, estimator: Any, words: Sequence[str]) -> None:
        self.estimator = estimator
        self.words = ["", *words]
        self.respond, self.head = estimator_response(estimator)

    @property
    def content_digest(self) -> bytes:
        return hashlib.blake2b(pickle.dumps((self.estimator, self.words)), digest_size=16).digest()

    def __reduce__(self) -> tuple[Any, ...]:
        return WordFunction, (self.estimator, self.words[1:])

    def __call__(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        texts = [" ".join(self.words[i] for i in row if i) for row in np.asarray(rows).tolist()]
        return np.asarray(self.respond(texts))


def from_words(loaded: LoadedModel, asked: Request) -> Task:
    """The task of an estimator that begins with a vectoriser, in the words between spaces."""
    texts, mine, train, theirs = all_texts(asked)
    labels = asked.numbers(mine, theirs, class_names(loaded.model))
    split = [text.split()[:MOST_WORDS] for text in texts]
    known = [] if train is None else [text.split()[:MOST_WORDS] for text in train]
    empty = [row for row, words in enumerate(split) if not words]
    if empty:
        raise InputError(f"{len(empty)} texts have no word at all (first: {empty[:5]}); leave them out")
    words = sorted({word for text in (*split, *known) for word in text})
    number = {word: place for place, word in enumerate(words, 1)}
    longest = max(map(len, split))
    rows = _numbered(split, number, longest)
    function = WordFunction(loaded.model, words)
    settings = dict(asked.settings)
    names = [[*text, *[""] * (longest - len(text))] for text in split]
    settings.setdefault("space", Space.tokens(longest, rows > 0, names))
    settings.setdefault("fill", Token(0))
    settings.setdefault("head", function.head)
    if labels.mine is not None:
        settings["labels"] = asked.drawn(labels.mine, "labels")
    if train is not None:
        reference = _numbered(known, number, longest)
        settings["train"] = reference if labels.theirs is None else (reference, labels.theirs)
    return labels.checked(Task(function, rows, **settings))


def _numbered(texts: list[list[str]], number: dict[str, int], longest: int) -> Tensor:
    rows = torch.zeros(len(texts), longest, dtype=torch.int64)
    for row, words in enumerate(texts):
        kept = words[:longest]
        rows[row, : len(kept)] = torch.tensor([number[word] for word in kept], dtype=torch.int64)
    return rows
