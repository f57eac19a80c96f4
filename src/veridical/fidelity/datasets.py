"""Training rows wherever they lie: tensors, torch datasets and loaders, Hugging Face datasets.

Rows of a dataset are read when a batch needs them and never all held. Which row joins which batch is keyed,
so the order of a loader does not matter; what it does to rows (`collate_fn`) and which it takes do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veridical.errors import InputError, ShapeError

READ_TWICE = 8
"""Rows read again, to notice a source that changes them at random."""
Columns = tuple[str, str | None]


class Streamed:
    """Inputs of a dataset, indexed by a tensor of row numbers like a tensor of them all."""

    def __init__(self, source: Any, columns: Columns | None, side: Sequence[str], like: Tensor) -> None:
        self._dataset = getattr(source, "dataset", source)
        # a dataset that is only walked through may inherit a __getitem__ that raises
        walked = isinstance(self._dataset, torch.utils.data.IterableDataset)
        if walked or not hasattr(self._dataset, "__len__"):
            raise InputError(
                f"{type(self._dataset).__name__} does not tell its number of rows and rows by their number; "
                "rows are split, ordered and masked by number: give a dataset with __len__ and __getitem__, "
                "which is read row by row all the same (of a Hugging Face stream: Dataset.from_generator)"
            )
        self._collate = getattr(source, "collate_fn", None)
        self._chosen = _chosen(source, len(self._dataset))
        self._columns, self._side, self._like = columns, side, like
        first = torch.arange(min(READ_TWICE, len(self)))
        if len(self) and not torch.equal(self[first], self[first]):
            raise InputError(
                "a training row differs when it is read again: an artefact is addressed by its rows; give a "
                "dataset without random changes (augmentation)"
            )

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.batch(index)[0]

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Inputs, labels and side inputs of the rows of these numbers."""
        places = [self._chosen[i] for i in index.tolist()]
        many = getattr(self._dataset, "__getitems__", None)
        items = many(places) if many is not None else [self._dataset[i] for i in places]
        inputs, labels, side = _parts(items, self._collate, self._columns, self._side)
        if inputs.shape[1:] != self._like.shape[1:]:
            raise ShapeError(
                f"training rows have shape {tuple(inputs.shape[1:])}, the task's inputs "
                f"{tuple(self._like.shape[1:])}"
            )
        there = {name: value.to(self.device) for name, value in side.items()}
        return inputs.to(self._like), None if labels is None else labels.to(self.device), there

    @property
    def device(self) -> torch.device:
        return self._like.device


def is_dataset(source: Any) -> bool:
    """Whether rows are to be read from it one by one rather than taken as they lie."""
    if isinstance(source, Tensor | np.ndarray | str | bytes | list | tuple | Mapping):
        return False
    return hasattr(source, "dataset") or (hasattr(source, "__getitem__") and not hasattr(source, "iloc"))


def _chosen(source: Any, count: int) -> Sequence[int]:
    """The row numbers a loader takes: all, or those of a subset sampler."""
    sampler = getattr(source, "sampler", None)
    data = torch.utils.data
    if sampler is None or isinstance(sampler, data.SequentialSampler):
        return range(count)
    if isinstance(sampler, data.RandomSampler) and not sampler.replacement:
        return range(count)
    if isinstance(sampler, data.SubsetRandomSampler):
        return sorted(sampler.indices)
    raise InputError(
        f"the loader draws rows by a {type(sampler).__name__}, and which rows it takes is not known "
        "beforehand; give the dataset itself, or a torch.utils.data.Subset of it"
    )


def _parts(
    items: Sequence[Any],
    collate: Callable[[Sequence[Any]], Any] | None,
    columns: Columns | None,
    side: Sequence[str],
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Inputs, labels and side inputs of rows: mappings by their columns, pairs by their place."""
    rows: Any = items
    batched = collate is not None and collate is not torch.utils.data.default_collate
    if collate is not None and batched:
        rows = collate(items)
    first = rows if batched else items[0]
    if isinstance(first, Mapping):
        names = _names(first, columns, side)
        found = {n: _tensor(rows[n]) if batched else _stack([row[n] for row in rows]) for n in names}
        assert columns is not None
        label = None if columns[1] is None else found[columns[1]]
        return found[columns[0]], label, {name: found[name] for name in side}
    if side:
        raise InputError(
            f"the task has side inputs {', '.join(side)}: rows must be mappings with these columns"
        )
    if isinstance(first, tuple | list):
        each = list(rows) if batched else list(zip(*rows, strict=True))
        made = [_tensor(part) if batched else _stack(part) for part in each[:2]]
        return made[0], made[1] if len(made) > 1 else None, {}
    return (_tensor(rows) if batched else _stack(rows)), None, {}


def _names(row: Mapping[str, Any], columns: Columns | None, side: Sequence[str]) -> list[str]:
    there = ", ".join(map(str, row))
    if columns is None:
        raise InputError(
            "rows of this dataset are mappings; give columns=(inputs, label), label None without any, "
            f"among {there}"
        )
    wanted = [*(name for name in columns if name is not None), *side]
    for name in wanted:
        if name not in row:
            raise InputError(f"the dataset has no column '{name}'; it has {there}")
    return wanted


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def _stack(values: Sequence[Any]) -> Tensor:
    found = [_tensor(value) for value in values]
    shapes = {tuple(value.shape) for value in found}
    if len(shapes) > 1:
        raise ShapeError(f"training rows differ in shape, {sorted(shapes)[:3]}; pad them to one")
    return torch.stack(found)
