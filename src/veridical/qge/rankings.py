"""Random rankings, their reverses, and the digest of a map that keys them."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.values.explanation import Explanation


def reversed_orders(orders: Tensor, valid: Tensor | None) -> Tensor:
    """The inverse of each ranking (N, ..., V), valid features reversed and the others left in place."""
    if valid is None:
        return orders.flip(-1)
    count = valid.sum(-1).reshape(-1, *[1] * (orders.dim() - 1))
    place = torch.arange(orders.shape[-1], device=orders.device).expand_as(orders)
    return orders.gather(-1, torch.where(place < count, count - 1 - place, place))


def digest(explanation: Explanation) -> Tensor:
    """64 bits per sample (N,) that stand for its ranking: draws keyed by them differ between explanations.

    It reads the ranking and not the values, whose last bits follow the batch they were computed in.
    """
    ranks = explanation.ranks
    features = torch.arange(ranks.shape[-1], device=ranks.device)
    cells = (ranks + (features << 32)).reshape(-1)
    mixed = keyed.bits(Key(0) / "ranking", cells, 0, 1).reshape(ranks.shape)
    if explanation.valid is not None:
        mixed = mixed.masked_fill(~explanation.valid, 0)
    return mixed.sum(-1)


def random_orders(
    key: Key, ids: Tensor, draws: Tensor | int, features: int, valid: Tensor | None = None
) -> Tensor:
    """Uniform rankings (N, V) of one draw, or (N, K, V) of several, invalid features last."""
    return keyed.permutation(key / "rankings", ids, draws, features, valid)
