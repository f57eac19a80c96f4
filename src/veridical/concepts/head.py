"""The linear head of a model: the last layer, which turns an embedding into outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from veridical.errors import InputError, ShapeError, unknown_name
from veridical.models.output_heads import Head as HeadKind


def real(values: Any, what: str) -> Tensor:
    """As a tensor without a graph; complex numbers would lose half of themselves."""
    given = torch.as_tensor(values).detach()
    if given.is_complex():
        raise InputError(f"{what} are complex numbers; expected real ones")
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
            raise ShapeError(
                "a head has weights (outputs, dimensions) and one bias per output; got "
                f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            )
        if not bool(torch.isfinite(weight).all() & torch.isfinite(bias).all()):
            raise InputError("the head has NaN or infinite weights")
        if self.kind not in get_args(HeadKind):
            raise unknown_name("kind of head", self.kind, get_args(HeadKind))
        if self.classifies and (len(weight) < 2 or (self.kind == "binary" and len(weight) > 2)):
            raise InputError(
                f"a {self.kind} head cannot have {len(weight)} outputs: several compete in 'multiclass', the "
                "columns (-z, z) of one logit z in 'binary'; a single number is 'regression'"
            )
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias", bias)

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
