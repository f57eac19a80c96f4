"""Texts and their labels from a table or an array."""

from __future__ import annotations

from typing import Any

from veridical.data.columns import label_column, text_column
from veridical.data.examples import Examples
from veridical.data.request import Request, is_text
from veridical.errors import InputError


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
