"""Embeddings: what the head sees of each sample, with the model's own answers beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.errors import InputError, ShapeError
from veridical.surf.head import Head


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Vectors (N, D), or one at each position (N, J, D) whose mean is what the head sees.

    `outputs` are the model's own (N, C); `labels` are true classes where known; `ids` key the draws.
    """

    values: Tensor
    outputs: Tensor
    ids: Tensor
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        if self.values.dim() not in (2, 3):
            raise ShapeError(
                f"embeddings have shape {tuple(self.values.shape)}; expected (samples, dimensions) or "
                "(samples, positions, dimensions)"
            )
        for what, tensor in (("outputs", self.outputs), ("ids", self.ids), ("labels", self.labels)):
            if tensor is not None and len(tensor) != len(self.values):
                raise ShapeError(f"{len(tensor)} {what} for {len(self.values)} embeddings")
        if not bool(torch.isfinite(self.values).all()):
            raise InputError("embeddings have NaN or infinite values; leave those rows out")

    @classmethod
    def of(
        cls, values: Tensor, head: Head, labels: Tensor | None = None, ids: Tensor | None = None
    ) -> Embeddings:
        """Embeddings given as they are; their outputs are the head's."""
        values = values.detach()
        if values.dim() in (2, 3) and values.shape[-1] != head.dimension:
            raise ShapeError(
                f"embeddings have {values.shape[-1]} dimensions, the head expects {head.dimension}"
            )
        ids = torch.arange(len(values), device=values.device) if ids is None else ids
        # piece by piece: in float64 a large set would not fit beside itself
        outputs = torch.cat([head.outputs(part) for part in values.split(4096)])
        return cls(values, outputs, ids, labels)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def dimension(self) -> int:
        return self.values.shape[-1]

    @property
    def spatial(self) -> bool:
        """Whether there is one vector a position."""
        return self.values.dim() == 3

    @property
    def pooled(self) -> Tensor:
        """What the head sees (N, D)."""
        return self.values.mean(1) if self.spatial else self.values

    @property
    def vectors(self) -> Tensor:
        """Every vector by itself (N * J, D), which dictionaries are fitted on."""
        return self.values.reshape(-1, self.dimension)

    def take(self, index: Tensor | slice) -> Embeddings:
        """Some of the samples."""
        part = object.__new__(Embeddings)  # checked already: a check would wait for the device in every chunk
        for name in ("values", "outputs", "ids", "labels"):
            held = getattr(self, name)
            object.__setattr__(part, name, None if held is None else held[index])
        return part
