"""A batch norm by its running statistics, which relevance folds into the layer before it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from veridical.explainers.graph.relevance_elements import constant
from veridical.explainers.graph.relevance_flow import proportional


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """A batch norm by its running statistics: a linear layer that keeps channels apart."""

    mean: Tensor
    var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def __call__(self, z: Tensor) -> Tensor:
        return torch.batch_norm(
            z, self.weight, self.bias, self.mean, self.var, False, 0.0, self.eps, torch.backends.cudnn.enabled
        )

    def pull(self, g: Tensor) -> Tensor:
        """What comes back through it: every channel times its scale, in one kernel."""
        # the second place is for what went in, of which only the shape is read; no batch was measured
        none = constant(0.0, g.dtype, g.device)[:0]
        found: Tensor = torch.ops.aten.native_batch_norm_backward.default(
            *(g, g, self.weight, self.mean, self.var, none, none, False, self.eps, [True, False, False])
        )[0]
        return found

    @cached_property
    def laid(self) -> tuple[Tensor, Tensor]:
        """What it multiplies by and what it adds."""
        scale = torch.rsqrt(self.var + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        bias = torch.zeros_like(scale) if self.bias is None else self.bias
        return scale, torch.addcmul(bias, self.mean, scale, value=-1)

    def alone(self, a: Tensor) -> Tensor:
        """The norm with no layer before it to fold into."""
        scale, shift = (v.reshape(1, -1, *[1] * (a.dim() - 2)) for v in self.laid)
        return proportional(torch.mul, (a, scale), {}, shift)
