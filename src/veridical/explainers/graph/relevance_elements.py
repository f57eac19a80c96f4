"""What relevance rules do to every output of a layer: on a GPU one kernel each, on a CPU vectorised steps."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from veridical.core.hash_kernels import at_once
from veridical.explainers.graph.products import Product
from veridical.functional.devices import on_host

TINY = 1e-30
"""Keeps a denominator of 0 from being one; far below any activation, so that it takes nothing of others."""


def _over(name: str, given: str, scaled: bool) -> str:
    """The kernel of a quotient, given one tensor or two to be multiplied, perhaps scaled."""
    behind, times = (", T scale", " * scale") if scaled else ("", "")
    return f"""
template <typename T> T {name}({", ".join(f"T {one}" for one in given)}, T z, T epsilon{behind}) {{
    T away = epsilon > 0 ? epsilon : 0 - epsilon;
    return ({" * ".join(given)}) / (z + ((z < 0 || 1 / z < 0) ? -away : away)){times};
}}
"""


OVER, OVER_SCALED = _over("over", "R", False), _over("over_scaled", "R", True)
OVER_PRODUCT = _over("over_product", "ab", False)
OVER_PRODUCT_SCALED = _over("over_product_scaled", "ab", True)
FAVOURED = """
template <typename T> T favoured(T z, T p) { return z >= 0 ? p : z - p; }
"""
MORE = """
template <typename T> T more(T x, T z, T factor) { return z >= 0 ? x : x * factor; }
"""


@lru_cache(maxsize=64)
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One number where a kernel wants a tensor, made once: to make it is a kernel by itself."""
    return torch.full((1,), value, dtype=dtype, device=device)


@lru_cache(maxsize=64)
def stabiliser(epsilon: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Epsilon, but no less than the smallest number that is no 0 in this precision with all its digits."""
    return constant(max(epsilon, torch.finfo(dtype).tiny), dtype, device)


def over(R: Tensor | Product, z: Tensor, epsilon: float = TINY, scale: Tensor | None = None) -> Tensor:
    """R / z, where z is pushed away from 0 by epsilon in the direction of its sign, times a scale."""
    away = stabiliser(epsilon, z.dtype, z.device)
    if type(R) is Product:
        if scale is None:
            return at_once(OVER_PRODUCT, over_product_steps, R.a, R.b, z, away)
        return at_once(OVER_PRODUCT_SCALED, over_product_scaled_steps, R.a, R.b, z, away, scale)
    assert isinstance(R, Tensor)
    if scale is None:
        return at_once(OVER, over_steps, R, z, away)
    return at_once(OVER_SCALED, over_scaled_steps, R, z, away, scale)


def over_steps(R: Tensor, z: Tensor, epsilon: Tensor) -> Tensor:
    """The same, step by step."""
    below = torch.copysign(epsilon, z).add_(z)
    return torch.div(R, below, out=below)


def over_scaled_steps(R: Tensor, z: Tensor, epsilon: Tensor, scale: Tensor) -> Tensor:
    """The same, scaled."""
    return over_steps(R, z, epsilon).mul_(scale)


def over_product_steps(a: Tensor, b: Tensor, z: Tensor, epsilon: Tensor) -> Tensor:
    """The same of a product."""
    return over_steps(torch.mul(a, b), z, epsilon)


def over_product_scaled_steps(a: Tensor, b: Tensor, z: Tensor, epsilon: Tensor, scale: Tensor) -> Tensor:
    """The same of a product, scaled."""
    return over_steps(torch.mul(a, b), z, epsilon).mul_(scale)


def by_sign(R: Tensor | Product, z: Tensor, p: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """What goes back through all contributions, and through the positive ones gamma times, by gamma's rule.

    With p and n the positive and negative parts of z = p + n, the denominators are z + gamma p where z is at
    least 0 and z + gamma n elsewhere. There n = z - p adds two numbers of one sign, so that p serves both and
    nothing cancels. A falling output favours its negative contributions: all of them less the positive ones.
    """
    if on_host(z):
        return _by_sign_vectorised(R, z, p, gamma)
    part = at_once(FAVOURED, favoured_steps, z, p)
    whole = over(R, torch.add(z, part, alpha=gamma))
    factors = (constant(factor, z.dtype, z.device) for factor in (1 + gamma, -1.0))
    every, positive = (at_once(MORE, more_steps, whole, z, factor) for factor in factors)
    return every, positive


def favoured_steps(z: Tensor, p: Tensor) -> Tensor:
    """The part of z that has its sign."""
    return torch.where(z >= 0, p, z - p)


def more_steps(x: Tensor, z: Tensor, factor: Tensor) -> Tensor:
    """x, times a factor where z is below 0."""
    return torch.where(z >= 0, x, x * factor)


def _by_sign_vectorised(R: Tensor | Product, z: Tensor, p: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """The same by arithmetic, which a CPU vectorises as it does not a choice."""
    rising = torch.sign(z).add_(0.5).sign_().add_(1).div_(2)  # 1 where z is at least 0, else 0
    whole = over(R, torch.add(z, torch.lerp(z - p, p, rising), alpha=gamma))
    up = whole * rising
    down = whole - up
    return torch.add(up, down, alpha=1 + gamma), up.sub_(down)
