"""Rows that need not lie in memory at once: shards, each read when its turn comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from veridical.core.key import Key, integers, permutation
from veridical.errors import InputError, ShapeError


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows (n, D) in shards: `read(i)` gives the i-th, and is asked for one at a time.

    Which rows make the batch of a step depends on the key and the step alone, so training can stop anywhere
    and go on elsewhere. All rows in memory are a stream of one shard: `Stream.of(rows)`.
    """

    read: Callable[[int], Tensor]
    """Gives the rows (n, D) of a shard by its number."""
    shards: int = 1
    """How many shards there are."""
    stay: int = 64
    """Steps that are made from a shard before the next is read; every round visits them in another order."""
    _held: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, rows: Any) -> Stream:
        """A stream as it is, or the rows of an array."""
        if isinstance(rows, Stream):
            return rows
        whole = torch.as_tensor(rows).detach()
        if whole.dim() != 2 or not len(whole):
            raise ShapeError(f"activations have shape {tuple(whole.shape)}; expected rows (n, dimensions)")
        return cls(lambda _: whole)

    def shard(self, number: int) -> Tensor:
        """The rows of one shard in float32; only the last that was asked for is held."""
        if self._held.get("number") != number:
            rows = self.read(number)
            if not bool(torch.isfinite(rows).all()):
                raise InputError(f"shard {number} of the activations has NaN or infinite values")
            self._held.update(number=number, rows=rows.float())
        rows = self._held["rows"]
        assert isinstance(rows, Tensor)
        return rows

    def batch(self, key: Key, step: int, size: int) -> Tensor:
        """The rows of one step (size, D), or fewer where a shard has fewer."""
        visit = step // self.stay
        number = 0
        one = torch.zeros(1, dtype=torch.int64)
        if self.shards > 1:
            order = permutation(key / "shards", one, visit // self.shards, self.shards)[0]
            number = int(order[visit % self.shards])
        rows = self.shard(number)
        one = one.to(rows.device)
        return rows[integers(key / "batches", one, step, min(size, len(rows)), len(rows))[0]]
