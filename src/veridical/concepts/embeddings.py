"""Embeddings: what the head sees of each sample, with the model's own answers beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from veridical.concepts.head import Head, real
from veridical.errors import InputError, ShapeError

_LEAST, _MOST = 1e-15, 1e15
"""What the largest value of a set may be: products of such numbers are still numbers in float32."""

Kind = Literal["pooled", "positions", "crops", "segments"]
"""What a row is the embedding of: a whole sample, a position of its map, a crop, a segment."""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Vectors (N, D), or several of each sample (N, J, D): at positions, of tokens, of crops.

    `outputs` are the model's own (N, C); `labels` are true classes where known; `ids` key the draws.
    Arrays of NumPy are welcome.
    """

    values: Tensor
    outputs: Tensor
    ids: Tensor
    labels: Tensor | None = None
    kind: Kind | None = None
    """What the rows are, which concept methods check; None where the caller vouches for them."""
    seen: Tensor | None = None
    """What the head sees (N, D) where that is not the mean of a sample's vectors: one token, say."""

    def __post_init__(self) -> None:
        for name in ("values", "outputs", "ids", "labels", "seen"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, real(given, name))
        if self.values.dim() not in (2, 3) or not len(self.values):
            raise ShapeError(
                f"embeddings have shape {tuple(self.values.shape)}; expected (samples, dimensions) or "
                "(samples, positions, dimensions), and at least one sample"
            )
        if not self.values.is_floating_point():
            object.__setattr__(self, "values", self.values.double())
        for what, tensor in (("outputs", self.outputs), ("ids", self.ids), ("labels", self.labels)):
            if tensor is not None and len(tensor) != len(self.values):
                raise ShapeError(f"{len(tensor)} {what} for {len(self.values)} embeddings")
        if self.outputs.dim() != 2:
            raise ShapeError(f"outputs have shape {tuple(self.outputs.shape)}; expected (samples, outputs)")
        if self.seen is not None and self.seen.shape != (len(self), self.dimension):
            raise ShapeError(
                f"what the head sees has shape {tuple(self.seen.shape)}; expected "
                f"{(len(self), self.dimension)}"
            )
        for what, tensor in (("embeddings", self.values), ("outputs", self.outputs), ("seen", self.seen)):
            if tensor is not None and not bool(torch.isfinite(tensor).all()):
                raise InputError(f"{what} have NaN or infinite values; leave those rows out")
        largest = float(torch.stack(self.values.aminmax()).abs().max())
        if largest and not _LEAST <= largest <= _MOST:
            raise InputError(
                f"the largest value of the embeddings is {largest:.3g}, and products of such numbers cannot "
                "be held; scale the embeddings, and the head's weights the other way"
            )

    @classmethod
    def of(
        cls, values: Any, head: Head, labels: Any = None, ids: Any = None, kind: Kind | None = None
    ) -> Embeddings:
        """Embeddings given as they are; their outputs are the head's."""
        values = real(values, "embeddings")
        if values.dim() in (2, 3) and values.shape[-1] != head.dimension:
            raise ShapeError(
                f"embeddings have {values.shape[-1]} dimensions, the head expects {head.dimension}"
            )
        ids = torch.arange(len(values), device=values.device) if ids is None else ids
        # piece by piece: in float64 a large set would not fit beside itself
        outputs = torch.cat([head.outputs(part) for part in values.split(4096)])
        return cls(values, outputs, ids, labels, kind)

    def __len__(self) -> int:
        return len(self.values)

    def check_outputs(self, head: Head) -> None:
        """Refuse answers of another model than the head's."""
        if self.outputs.shape[1] != head.n_outputs:
            raise ShapeError(
                f"embeddings come with {self.outputs.shape[1]} outputs each, the head has {head.n_outputs}"
            )

    @property
    def dimension(self) -> int:
        """The length of an embedding."""
        return self.values.shape[-1]

    @property
    def spatial(self) -> bool:
        """Whether there are several vectors of each sample."""
        return self.values.dim() == 3

    @property
    def pooled(self) -> Tensor:
        """What the head sees (N, D)."""
        if self.seen is not None:
            return self.seen
        return self.values.mean(1) if self.spatial else self.values

    @property
    def vectors(self) -> Tensor:
        """Every vector by itself (N * J, D), which dictionaries are fitted on."""
        return self.values.reshape(-1, self.dimension)

    def as_pooled(self) -> Embeddings:
        """One vector of each sample: what the head sees."""
        return replace(self, values=self.pooled, seen=None, kind="pooled") if self.spatial else self

    def take(self, index: Tensor | slice) -> Embeddings:
        """Some of the samples."""
        part = object.__new__(Embeddings)  # checked already: a check would wait for the device in every chunk
        for name in ("values", "outputs", "ids", "labels", "seen"):
            held = getattr(self, name)
            object.__setattr__(part, name, None if held is None else held[index])
        object.__setattr__(part, "kind", self.kind)
        return part
