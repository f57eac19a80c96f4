"""What a head is, and what it sees of each sample: `y = F h + b` and the embeddings h."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from veridical.errors import InputError, ShapeError, unknown_name
from veridical.models.output_heads import Head as HeadKind


def real(values: Any, what: str) -> Tensor:
    """As a tensor without a graph; complex numbers would lose half of themselves."""
    given = torch.as_tensor(values).detach()
    if given.is_complex():
        raise InputError(f"{what} are complex numbers; expected real ones")
    if not bool(torch.isfinite(given).all()):
        raise InputError(f"{what} have NaN or infinite values")
    return given


@dataclass(frozen=True, eq=False)
class Head:
    """Outputs `y = F h + b` of an embedding h, in float64; arrays of NumPy are welcome.

    `exact` is False where F and b are the first-order expansion of a head that is not linear.

    >>> Head(torch.eye(2), torch.zeros(2)).outputs(torch.tensor([[1.0, 2.0]])).tolist()
    [[1.0, 2.0]]
    """

    weight: Tensor
    bias: Tensor
    kind: HeadKind = "multiclass"
    layer: str = ""
    exact: bool = True

    def __post_init__(self) -> None:
        weight, bias = (real(given, "a head's weights").double() for given in (self.weight, self.bias))
        if weight.dim() != 2 or not weight.numel() or tuple(bias.shape) != (len(weight),):
            shapes = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            raise ShapeError(f"a head has weights (outputs, dimensions) and a bias per output; got {shapes}")
        if self.kind not in get_args(HeadKind):
            raise unknown_name("kind of head", self.kind, get_args(HeadKind))
        if self.classifies and (len(weight) < 2 or (self.kind == "binary" and len(weight) > 2)):
            raise InputError(
                f"a {self.kind} head cannot have {len(weight)} outputs: several compete in 'multiclass', "
                "(-z, z) of one logit z in 'binary'; a single number is 'regression'"
            )
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias", bias)

    def __repr__(self) -> str:
        outputs, size = self.weight.shape
        return f"Head: {outputs} outputs ({self.kind}) of {size} values" + f", layer '{self.layer}'" * bool(
            self.layer
        )

    @property
    def n_outputs(self) -> int:
        return len(self.weight)

    @property
    def dimension(self) -> int:
        """The length of an embedding."""
        return self.weight.shape[1]

    @property
    def norms(self) -> Tensor:
        """The length of each output's weight vector: below about 0.3 the sanity check's order may fail."""
        return self.weight.norm(dim=1)

    @property
    def classifies(self) -> bool:
        """Whether outputs compete in one softmax, so that there is a top class and a distribution."""
        return self.kind in ("multiclass", "binary")

    def outputs(self, h: Tensor) -> Tensor:
        """`F h + b` for embeddings (N, D), or for positions (N, J, D), whose mean the head sees."""
        h = h.double()
        return torch.addmm(self.bias, h.mean(1) if h.dim() == 3 else h, self.weight.T)

    def probabilities(self, y: Tensor) -> Tensor:
        """Softmax of the outputs; a binary head's columns (-z, z) give the sigmoid of z and its rest."""
        return torch.softmax(y / 2 if self.kind == "binary" else y, -1)

    def membership(self, y: Tensor) -> Tensor:
        """Which rows belong to each output (N, C): predicted as it, positive for it, or all."""
        if self.kind == "regression":
            return torch.ones_like(y, dtype=torch.bool)
        if self.kind == "multilabel":
            return y > 0
        return torch.zeros_like(y, dtype=torch.bool).scatter_(1, y.argmax(1, keepdim=True), True)


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
    grid: tuple[int, int] | None = None
    """Rows and columns of the map that a sample's positions are, row by row; a square where it may be one."""

    words: Tensor | None = None
    """Which of a sample's vectors (N, J) are no padding; None for all."""

    def __post_init__(self) -> None:
        for name in ("values", "outputs", "ids", "labels", "seen"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, real(given, "embeddings" if name == "values" else name))
        count, shape = len(self.values), tuple(self.values.shape)
        if self.values.dim() not in (2, 3) or not count:
            raise ShapeError(f"embeddings are (samples, [positions,] dimensions), at least one; got {shape}")
        if not self.values.is_floating_point():
            object.__setattr__(self, "values", self.values.double())
        for what, tensor in (("outputs", self.outputs), ("ids", self.ids), ("labels", self.labels)):
            if tensor is not None and len(tensor) != count:
                raise ShapeError(f"{len(tensor)} {what} for {count} embeddings")
        if self.outputs.dim() != 2:
            raise ShapeError(f"outputs have shape {tuple(self.outputs.shape)}; expected (samples, outputs)")
        if self.seen is not None and self.seen.shape != (count, self.dimension):
            raise ShapeError(f"what the head sees has shape {tuple(self.seen.shape)} for embeddings {shape}")
        if self.grid is None and self.spatial:
            side = round(self.values.shape[1] ** 0.5)
            object.__setattr__(self, "grid", (side, side) if side**2 == self.values.shape[1] else None)
        largest = float(torch.stack(self.values.aminmax()).abs().max())
        if largest and not _LEAST <= largest <= _MOST:
            raise InputError(
                f"the largest value is {largest:.3g}, and products of such numbers cannot be held; scale the "
                "embeddings, and the head's weights the other way"
            )

    @classmethod
    def of(
        cls, values: Any, head: Head, labels: Any = None, ids: Any = None, kind: Kind | None = None
    ) -> Embeddings:
        """Embeddings given as they are; their outputs are the head's."""
        values = real(values, "embeddings")
        if values.dim() in (2, 3) and values.shape[-1] != head.dimension:
            raise ShapeError(f"embeddings have {values.shape[-1]} dimensions, the head {head.dimension}")
        ids = torch.arange(len(values), device=values.device) if ids is None else ids
        # piece by piece: in float64 a large set would not fit beside itself
        outputs = torch.cat([head.outputs(part) for part in values.split(4096)])
        return cls(values, outputs, ids, labels, kind)

    def __len__(self) -> int:
        return len(self.values)

    def check_outputs(self, head: Head) -> None:
        """Refuse outputs of another model than the head's."""
        if self.outputs.shape[1] != head.n_outputs:
            own = self.outputs.shape[1]
            raise ShapeError(f"embeddings come with {own} outputs each, the head has {head.n_outputs}")

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
        """Every vector by itself (N * J, D) but padding, which dictionaries are fitted on."""
        return self.values.reshape(-1, self.dimension) if self.words is None else self.values[self.words]

    def as_pooled(self) -> Embeddings:
        """One vector of each sample: what the head sees."""
        if not self.spatial:
            return self
        return replace(self, values=self.pooled, seen=None, kind="pooled", grid=None, words=None)

    def take(self, index: Tensor | slice) -> Embeddings:
        """Some of the samples."""
        part = object.__new__(Embeddings)  # checked already: a check would wait for the device in every chunk
        for name in ("values", "outputs", "ids", "labels", "seen", "words"):
            held = getattr(self, name)
            object.__setattr__(part, name, None if held is None else held[index])
        for name in ("kind", "grid"):
            object.__setattr__(part, name, getattr(self, name))
        return part
