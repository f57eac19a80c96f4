"""Known answers over columns: linear, additive with interactions, and tiers of influence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veridical.data.data import Data
from veridical.data.known import KnownAnswer, draw_normal, draw_order, halves, signed, task_of
from veridical.values.space import Space

COLUMNS = 12
USED = 5
WEIGHTS = (2.0, -1.6, 1.2, -0.9, 0.6)  # the other columns have weight 0
PAIRS = ((0, 1, 1.5), (2, 3, -1.0), (1, 4, 0.8))

TIERS = (20, 30, 50)
"""Tier sizes c_1, c_2, c_3; their sum is the number of elements."""


class TwoClassLinear(nn.Module):
    """Logits (-z/2, z/2) of z = w.x: the probability of class 1 is the sigmoid of z."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(len(weight), 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.stack([-weight / 2, weight / 2]))
            self.linear.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class TwoClassInteractions(nn.Module):
    """Logits (-z/2, z/2) of z = a.x + sum over pairs of b_ij x_i x_j."""

    def __init__(self, weight: Tensor, pairs: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.pairs = nn.Parameter(pairs.clone())  # symmetric, zero diagonal: x B x / 2 is the sum over pairs

    def forward(self, x: Tensor) -> Tensor:
        z = x @ self.weight + ((x @ self.pairs) * x).sum(-1) / 2
        return torch.stack([-z / 2, z / 2], 1)


class TierCount(nn.Module):
    """Logits (-z/2, z/2) of z = gain * (sum of x) - offset, where an element's value is its tier's weight."""

    def __init__(self, elements: int, gain: float, offset: float) -> None:
        super().__init__()
        self.linear = nn.Linear(elements, 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor([-gain / 2, gain / 2])[:, None].expand(2, elements))
            self.linear.bias.copy_(torch.tensor([offset / 2, -offset / 2]))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def _weight() -> Tensor:
    return torch.tensor([*WEIGHTS, *[0.0] * (COLUMNS - USED)])


def _columns() -> Space:
    return Space.columns(COLUMNS, [f"x{i}" for i in range(COLUMNS)])


def linear(samples: int | None, seed: int) -> KnownAnswer:
    """z = w.x with 5 of 12 columns in use: the truth is w * x, the change when a column becomes zero."""
    model = TwoClassLinear(_weight())
    rows = draw_normal("linear", COLUMNS)
    used = (_weight() != 0).expand(len(rows), COLUMNS)
    data = Data(rows, (rows @ _weight() > 0).long(), *halves(), masks=used)
    task, _ = task_of(model, data, "linear", samples, seed, space=_columns())
    return KnownAnswer(
        task,
        signed(task, _weight() * task.inputs / 2),
        winners=("input_x_gradient", "integrated_gradients", "occlusion"),
        losers=("random",),
        why="in a linear model a column contributes weight times value",
    )


def interactions(samples: int | None, seed: int) -> KnownAnswer:
    """z = a.x + pairs: the truth is the Shapley value against zero, each pair shared equally.

    phi_i = x_i (a_i + sum_j b_ij x_j / 2). Integrated gradients from zero give exactly this; input times
    gradient and occlusion charge every pair in full to both of its columns.
    """
    pairs = torch.zeros(COLUMNS, COLUMNS)
    for i, j, strength in PAIRS:
        pairs[i, j] = pairs[j, i] = strength
    model = TwoClassInteractions(_weight(), pairs)
    rows = draw_normal("interactions", COLUMNS)
    used = (_weight() != 0).expand(len(rows), COLUMNS)
    with torch.no_grad():
        labels = model(rows).argmax(1)
    data = Data(rows, labels, *halves(), masks=used)
    task, _ = task_of(model, data, "interactions", samples, seed, space=_columns())
    x = task.inputs
    return KnownAnswer(
        task,
        signed(task, x * (_weight() + x @ pairs / 2) / 2),
        winners=("integrated_gradients",),
        losers=("random",),
        why="the Shapley value splits each interaction equally between its two columns",
    )


def tier_weights() -> tuple[float, ...]:
    """One weight per tier; an element outweighs all elements of the lower tiers together."""
    weights = [1.0]
    for size in reversed(TIERS[1:]):
        weights.insert(0, weights[0] * (size + 1))
    return tuple(weights)


def tiers(samples: int | None, seed: int) -> KnownAnswer:
    """F-Fidelity's Theorem 1: the probability is g(j_1, j_2, j_3), lexicographically increasing.

    j_k counts the elements of tier k that are still there. Tiers have 20, 30 and 50 elements at other
    places in every sample. An element's value is the weight of its tier, so the sum of a masked input
    orders the counts lexicographically, and g is the sigmoid of a multiple of it. All elements of one tier
    have the same Shapley value. Masks mark the first tier.
    """
    weights = tier_weights()
    by_place = torch.cat([torch.full((size,), w) for size, w in zip(TIERS, weights, strict=True)])
    elements = sum(TIERS)
    order = draw_order("tiers", elements)
    rows = torch.empty(len(order), elements).scatter_(1, order, by_place.expand(len(order), elements))
    total = float(by_place.sum())
    gain = 12.0 / total  # all there: z = 6, half of the first tier gone: z near 0
    model = TierCount(elements, gain, 6.0)
    labels = torch.ones(len(rows), dtype=torch.int64)
    data = Data(rows, labels, *halves(), masks=rows == weights[0])
    task, _ = task_of(model, data, "tiers", samples, seed, space=Space.columns(elements))
    return KnownAnswer(
        task,
        task.inputs * (gain / 2),
        winners=("input_x_gradient", "integrated_gradients", "occlusion"),
        losers=("random", "gradient"),
        why="an element contributes the weight of its tier, whatever else is there",
    )
