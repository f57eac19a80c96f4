"""The small network of C-SHAP: it rebuilds an embedding from its concepts (eq. 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.concepts.head import Head
from veridical.core.key import Key, uniform

_RANK = 1e-6
"""Singular values of a head below this share of the largest are none."""


@dataclass(frozen=True, eq=False)
class Units:
    """The coordinates in which a network is trained: whatever they are, it rebuilds the same embeddings."""

    read: Tensor
    """What outputs are of the rebuilt embedding's coordinates (C, r)."""
    codes: float = 1.0
    """What codes are divided by."""
    answers: float = 1.0
    """What the coordinates are multiplied by."""
    hidden: float = 1.0
    """What a hidden unit counts for in a coordinate."""

    @classmethod
    def plain(cls, head: Head) -> Units:
        """The embedding as it is: outputs are `F psi`."""
        return cls(head.weight.float())

    @classmethod
    def of_head(cls, head: Head, codes: Tensor, wanted: Tensor, hidden: int) -> Units:
        """The outputs themselves, in units of their spread, so that a rate suits any head.

        Any outputs in the column space of F are those of some embedding, `psi = pinv(F) y`: the second layer
        is `pinv(F)` times what is trained here. In the embedding's own coordinates Adam cannot reach what F
        hardly sees: the weights of ResNet-20's classes sum to 0.4% of their length, and a perfect
        reconstruction lies along that sum.
        """
        left, sizes, _ = torch.linalg.svd(head.weight, full_matrices=False)
        left = left[:, sizes > _RANK * sizes[0]]
        full = left.shape[1] == head.n_outputs
        read = torch.eye(head.n_outputs).to(left) if full else left / max(1, left.shape[1]) ** 0.5
        return cls(read.float(), _spread(codes), _spread(wanted - head.bias), 1 / hidden)


class Network:
    """`psi(p) = W2 relu(W1 p + b1) + b2`, shared by all outputs and seen through the head only.

    `f_i . psi(p_i)` needs `F W2` (C, H) and never an embedding, so nothing of size N x C x D is built.
    """

    def __init__(self, concepts: int, head: Head, hidden: int, key: Key, units: Units | None = None) -> None:
        place = head.weight.device
        self.units = units or Units.plain(head)
        self.bias = head.bias.float()
        width = self.units.read.shape[1]

        def start(name: str, *shape: int, fan_in: int) -> Tensor:
            one = torch.zeros(1, dtype=torch.int64, device=place)
            draw = uniform(key / name, one, 0, math.prod(shape)).reshape(shape)
            return ((2 * draw - 1) / math.sqrt(fan_in)).requires_grad_(True)

        self.first = start("first", hidden, concepts, fan_in=concepts)
        self.first_bias = start("first bias", hidden, fan_in=concepts)
        self.second = start("second", width, hidden, fan_in=hidden)
        self.second_bias = start("second bias", width, fan_in=hidden)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.first, self.first_bias, self.second, self.second_bias]

    def __call__(self, codes: Tensor) -> Tensor:
        """Outputs (N, C) of codes (N, C or 1, K)."""
        rows, groups, count = codes.shape
        units = self.units
        # outputs first: one product per output then reads its hidden units where they lie
        flat = (codes.float() / units.codes).transpose(0, 1).reshape(-1, count)
        hidden = torch.relu_(torch.addmm(self.first_bias, flat, self.first.T)).view(groups, rows, -1)
        through = units.read @ self.second * (units.answers * units.hidden)
        if groups == 1:
            seen = hidden[0] @ through.T
        else:
            seen = torch.bmm(hidden, through[:, :, None]).squeeze(-1).T
        return seen + units.read @ self.second_bias * units.answers + self.bias


def _spread(values: Tensor) -> float:
    """The standard deviation; 1 where there is none."""
    return float(values.double().std(correction=0)) or 1.0
