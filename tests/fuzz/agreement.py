"""Two answers to one call: the same bits in another process, the same numbers under another plan."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.auditing.result import Audit
from veridical.core.key import Key
from veridical.models.cost import Cost
from veridical.study import Study

CLOSE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""How far numbers may lie apart under two plans, as a share of the largest, by the type of the model."""
UNLIKE = {
    "written",
    "cost",
    "reference_cost",
    "explanation_cost",
    "provenance",
    "seconds",
    "notes",
    "path",
    "call",
    "kept",
}
"""What is about the call rather than its answer."""

Fact = tuple[str, "np.ndarray[Any, Any] | str"]


def facts(thing: Any, at: str = "") -> Iterator[Fact]:
    """Every number and text of an answer, with its place in it."""
    if isinstance(thing, Tensor):
        yield at, thing.detach().cpu().to(torch.float64).numpy()
    elif isinstance(thing, np.ndarray) and thing.dtype.kind in "fiub":
        yield at, thing.astype(np.float64)
    elif isinstance(thing, bool | int | float | np.number):
        yield at, np.asarray(float(thing))
    elif isinstance(thing, str | bytes):
        yield at, str(thing)
    elif isinstance(thing, pd.DataFrame):
        for name in thing.columns:
            column = thing[name].tolist()
            yield from facts({str(row): value for row, value in enumerate(column)}, f"{at}/{name}")
    elif isinstance(thing, Mapping):
        for name, inner in thing.items():
            yield from facts(inner, f"{at}/{name}")
    elif isinstance(thing, list | tuple | set | frozenset):
        for place, inner in enumerate(
            sorted(thing, key=str) if isinstance(thing, set | frozenset) else thing
        ):
            yield from facts(inner, f"{at}/{place}")
    elif isinstance(thing, vd.Task):
        yield from facts([thing.outputs, thing.targets, thing.content_hash()], f"{at}/task")
    elif isinstance(thing, Audit):
        yield from facts([thing.to_frame(), thing.sentences, thing.checks, thing.evaluation], at)
    elif isinstance(thing, Study):
        yield from facts([thing.frame(), dataclasses.asdict(thing.status())], at)
    elif isinstance(thing, nn.Module):
        yield from facts(thing.state_dict(), at)
    elif isinstance(thing, Cost | Key | vd.Plan):
        return
    elif dataclasses.is_dataclass(thing):
        for each in dataclasses.fields(thing):
            if each.name not in UNLIKE:
                yield from facts(getattr(thing, each.name), f"{at}/{each.name}")
    elif hasattr(thing, "scores") and isinstance(thing.scores, Mapping):
        yield from facts(thing.scores, at)


def digest(thing: Any) -> str:
    """One word for an answer, or for the error it ended in."""
    made = hashlib.sha256()
    if isinstance(thing, BaseException):
        words = re.sub(r"0x[0-9a-f]+|/tmp/\S+|\d+(\.\d+)? ?(s|MiB)\b", "", f"{type(thing).__name__}: {thing}")
        made.update(words.encode(errors="replace"))
    else:
        for place, value in facts(thing):
            made.update(place.encode(errors="replace"))
            made.update(value.encode(errors="replace") if isinstance(value, str) else value.tobytes())
    return made.hexdigest()[:16]


def disagreement(one: Any, other: Any, precision: torch.dtype = torch.float64) -> str | None:
    """Where two answers to one call lie apart, or None."""
    for failed, done in ((one, other), (other, one)):
        if isinstance(failed, BaseException):
            if type(failed) is type(done):
                return None
            words = f"{type(failed).__name__} ({str(failed)[:150]})"
            return f"{words} under one plan, {type(done).__name__} otherwise"
    ours, theirs = list(facts(one)), list(facts(other))
    if [place for place, _ in ours] != [place for place, _ in theirs]:
        return (
            f"other contents under another plan: {sorted({p for p, _ in ours} ^ {p for p, _ in theirs})[:3]}"
        )
    for (place, a), (_, b) in zip(ours, theirs, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            continue  # sentences round numbers
        if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return f"{place}: {a.tolist()} and {b.tolist()} under another plan"
        finite = np.isfinite(a)
        apart = np.abs(a[finite] - b[finite]).max(initial=0.0)
        if apart > CLOSE[precision] * max(np.abs(a[finite]).max(initial=0.0), 1e-9):
            return f"{place}: {a.tolist()} and {b.tolist()} under another plan"
    return None
