"""Texts and their labels from a table or an array, and estimators of texts, explained in words."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veridical.data.files import Examples
from veridical.data.model_files import LoadedModel
from veridical.data.request import Request, is_text
from veridical.data.tables import label_column, text_column
from veridical.errors import InputError
from veridical.models.estimators import class_names, estimator_response
from veridical.perturb.fills import Token
from veridical.values.space import Space
from veridical.values.task import Task


def all_texts(asked: Request) -> tuple[list[str], Any, list[str] | None, Any]:
    """Drawn texts, labels of all texts, reference texts and their labels."""
    texts, mine = texts_of(asked.data, asked.labels, asked.text)
    train, theirs = None, None
    if asked.reference is not None:
        train, theirs = texts_of(asked.reference, asked.labels, asked.text, reference=True)
    elif "train" in asked.data.arrays:
        train, theirs = list(asked.data.arrays["train"]), asked.data.arrays.get("train_labels")
    return asked.drawn(texts, "texts"), mine, train, theirs


def texts_of(
    data: Examples, labels: str | None, text: str | None, reference: bool = False
) -> tuple[list[str], Any]:
    """The texts of a table or array, and their labels as they were written."""
    if data.kind == "arrays" and is_text(data.rows):
        return [str(value) for value in data.rows], data.arrays.get("labels")
    if data.kind != "table":
        raise InputError(
            "the model classifies texts; give a .jsonl, .csv or .parquet table with a column of them, not "
            + ("a folder of images" if data.kind == "images" else "arrays of numbers")
        )
    frame = data.rows
    if reference and labels is not None and labels not in frame.columns:
        labels = None
    label = label_column(frame, labels)
    column = text_column(frame, label, text)
    for name in (column, label):
        if name is not None and frame[name].isna().any():
            missing = [i for i, gone in enumerate(frame[name].isna()) if gone]
            raise InputError(f"column '{name}' is empty in {len(missing)} rows (first: {missing[:5]})")
    return [str(value) for value in frame[column]], None if label is None else frame[label].to_numpy()


# --- estimators that begin with a vectoriser ------------------------------------------------------------

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
