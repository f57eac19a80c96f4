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
from veridical.data.tables import label_column, text_column
from veridical.errors import InputError
from veridical.models.estimators import estimator_response

MOST_WORDS = 256
"""Words of a text that are explained; what comes after them is cut off."""


def is_text(rows: Any) -> bool:
    """Whether these rows are texts rather than numbers."""
    if isinstance(rows, np.ndarray):
        return rows.dtype.kind == "U"
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], str)


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


def split_words(texts: Sequence[str]) -> list[list[str]]:
    """The words between spaces of each text, the first 256 of them."""
    return [text.split()[:MOST_WORDS] for text in texts]


def word_rows(texts: list[list[str]], number: dict[str, int], longest: int) -> Tensor:
    """Texts as rows of word numbers, 0 behind the last word."""
    rows = torch.zeros(len(texts), longest, dtype=torch.int64)
    for row, words in enumerate(texts):
        kept = words[:longest]
        rows[row, : len(kept)] = torch.tensor([number[word] for word in kept], dtype=torch.int64)
    return rows
