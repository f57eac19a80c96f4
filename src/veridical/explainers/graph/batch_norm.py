"""A batch norm by its running statistics, which relevance folds into the layer before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.explainers.graph.relevance_flow import proportional
from veridical.explainers.graph.routes import Routed
from veridical.explainers.graph.weight_parts import Parts, kept_in


@dataclass(eq=False, slots=True)
class Affine:
    """A factor and a summand for every channel: a norm by hand, or several behind one another."""

    scale: Tensor
    shift: Tensor

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All that it is made of."""
        return self.scale, self.shift

    def laid(self, axes: int = 1) -> tuple[Tensor, Tensor]:
        """What it multiplies by and what it adds, fit for tensors of so many axes with channels second."""
        shape = _second_of(axes)
        return self.scale.reshape(shape), self.shift.reshape(shape)


def _second_of(axes: int) -> list[int]:
    return [1] * (axes > 1) + [-1] + [1] * (axes - 2)


@dataclass(eq=False, slots=True)
class BatchNorm:
    """A batch norm by its running statistics: a linear layer that keeps channels apart."""

    mean: Tensor
    var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    parts: Parts | None = None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All that it is made of."""
        return self.mean, self.var, self.weight, self.bias

    def __call__(self, z: Tensor) -> Tensor:
        return torch.batch_norm(
            z, self.weight, self.bias, self.mean, self.var, False, 0.0, self.eps, torch.backends.cudnn.enabled
        )

    def laid(self, axes: int = 1) -> tuple[Tensor, Tensor]:
        """What it multiplies by and what it adds, fit for tensors of so many axes with channels second."""

        def make() -> tuple[Tensor, Tensor]:
            scale = torch.rsqrt(self.var + self.eps)
            scale = scale if self.weight is None else scale * self.weight
            bias = torch.zeros_like(scale) if self.bias is None else self.bias
            shape = _second_of(axes)
            return scale.reshape(shape), torch.addcmul(bias, self.mean, scale, value=-1).reshape(shape)

        found: tuple[Tensor, Tensor] = kept_in(self.parts, ("laid", axes, self.eps), self.tensors, make)
        return found

    def alone(self, a: Tensor) -> Routed:
        """The norm with no layer before it to fold into."""
        scale, shift = self.laid(a.dim())
        return proportional(torch.mul, (a, scale), {}, shift)
