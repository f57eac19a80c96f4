"""True classes as the numbers of a model's outputs, whether they were written as numbers or as names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veridical.errors import InputError


def class_numbers(values: Any, classes: Sequence[str] | None = None) -> Tensor:
    """The output each label stands for.

    Numbers count outputs. Names are looked up in `classes`, the names of the outputs in their order,
    without regard to case; names that are all digits count outputs too. Without `classes` names are
    numbered in alphabetic order.

    >>> class_numbers(["pos", "neg"], ["NEG", "POS"])
    tensor([1, 0])
    """
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return torch.tensor(array.astype(np.int64))
    if array.dtype.kind == "f":
        whole = classes is not None and bool((array == array.round()).all())
        return torch.tensor(array.astype(np.int64) if whole else array)
    names = [str(value) for value in array.reshape(-1).tolist()]
    order = _order(names, classes)
    return torch.tensor([order[name] for name in names])


def _order(names: Sequence[str], classes: Sequence[str] | None) -> dict[str, int]:
    """The number of every name."""
    distinct = sorted(set(names))
    for known in (classes, None if classes is None else [name.casefold() for name in classes]):
        if known is None or len(set(known)) < len(known):
            continue
        place = {name: number for number, name in enumerate(known)}
        found = {name: place.get(name, place.get(name.casefold(), -1)) for name in distinct}
        if min(found.values()) >= 0:
            return found
    if all(name.isascii() and name.isdigit() for name in distinct):
        return {name: int(name) for name in distinct}
    if classes is None:
        return {name: number for number, name in enumerate(distinct)}
    unknown = [name for name in distinct if name.casefold() not in {c.casefold() for c in classes}]
    raise InputError(f"labels {_few(unknown)} are not among the model's classes {_few(classes)}")


def _few(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return f"[{shown}{f', ... ({len(names)} in all)' if len(names) > most else ''}]"


def check_labels(labels: Tensor | None, outputs: int, head: str, named: int | None = None) -> None:
    """Refuse class numbers the model has no output for; `named` classes were numbered by name alone."""
    if labels is None or head in ("regression", "multilabel"):
        return
    if named is not None and named != outputs:
        raise InputError(
            f"the labels name {named} classes and the model has {outputs} outputs, so which is which is not "
            f"clear; write them as the numbers 0 to {outputs - 1} of the outputs, or give classes=[...]"
        )
    if labels.is_floating_point():
        raise InputError(
            f"labels have fractions and the model tells {outputs} classes apart; write them as the numbers 0 "
            f"to {outputs - 1} of the outputs, or say head='regression'"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= outputs:
        raise InputError(
            f"labels run from {low} to {high}, and the model's outputs are numbered 0 to {outputs - 1}"
        )
