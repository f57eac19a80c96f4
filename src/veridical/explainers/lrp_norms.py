"""Batch norms that stand behind a layer with weights, and are folded into it: all made ready at once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, fx

from veridical.explainers.lrp_rules import scale_and_shift

Node = TypeVar("Node", bound=Hashable)


def facts(norm: Any) -> tuple[Any, ...]:
    """A batch norm's statistics and weights, as `scale_and_shift` takes them."""
    return norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps


def only_user(node: fx.Node) -> fx.Node | None:
    """The layer that alone reads this node, if it is one."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op == "call_module" else None


def scales_and_shifts(norms: Mapping[Node, Any]) -> dict[Node, tuple[Tensor, Tensor]]:
    """What each norm multiplies by and adds; those that are alike are computed as one long norm."""
    alike: dict[tuple[Any, ...], list[Node]] = {}
    for node, norm in norms.items():
        mean, _, weight, bias, eps = facts(norm)
        kind = weight is None, bias is None, eps, mean.dtype, mean.device
        alike.setdefault(kind, []).append(node)
    out: dict[Node, tuple[Tensor, Tensor]] = {}
    for nodes in alike.values():
        parts = list(zip(*(facts(norms[node]) for node in nodes), strict=True))
        mean, var, weight, bias = (None if part[0] is None else torch.cat(part) for part in parts[:4])
        whole = scale_and_shift(mean, var, weight, bias, parts[4][0])  # type: ignore[arg-type]
        sizes = [len(part) for part in parts[0]]
        pairs = zip(*(each.split(sizes) for each in whole), strict=True)
        out |= {node: (scale, shift) for node, (scale, shift) in zip(nodes, pairs, strict=True)}
    return out
