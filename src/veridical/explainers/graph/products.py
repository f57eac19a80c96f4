"""Relevance as a product that is not yet multiplied: who reads it next divides it in the same kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from veridical.core.hash_kernels import at_once

# `+ 0` keeps a compiler from joining a product and a sum, which would round once instead of twice
BOTH = """
template <typename T> T both(T a, T b, T c, T d) { return (a * b + T(0)) + (c * d + T(0)); }
"""
FURTHER = """
template <typename T> T further(T R, T a, T b) { return R + (a * b + T(0)); }
"""


class Product:
    """a times b, of one shape."""

    __slots__ = ("a", "b")

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b


def dense(R: Any) -> Any:
    """Relevance as a tensor."""
    return torch.mul(R.a, R.b) if type(R) is Product else R


def added(one: Any, other: Any) -> Tensor:
    """The sum of what comes back by two ways."""
    if type(one) is Product:
        if type(other) is Product:
            return at_once(BOTH, both_steps, one.a, one.b, other.a, other.b)
        one, other = other, one
    if type(other) is Product:
        return at_once(FURTHER, further_steps, one, other.a, other.b)
    total: Tensor = one + other
    return total


def both_steps(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """a b + c d, step by step."""
    return torch.mul(a, b).add(torch.mul(c, d))


def further_steps(R: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """R + a b, step by step."""
    return R + torch.mul(a, b)
