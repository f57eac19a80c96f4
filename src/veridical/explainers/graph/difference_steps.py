"""What non-linear operations pass back of differences: rectifiers, products, softmax, maxima, functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.core.hash_kernels import at_once
from veridical.explainers.graph.relevance_elements import constant
from veridical.explainers.graph.routes import pulling
from veridical.functional.devices import on_host

# a GPU makes the answers of the ReLU again: to read them takes longer
RESCALED = """
template <typename T> T rescaled(T above, T z, T z0, T tiny) {
    T y = z > 0 ? z : T(0), y0 = z0 > 0 ? z0 : T(0);
    return above / (2 - (z + (z0 - tiny)) / (y + y0));
}
"""


def rescaled_steps(above: Tensor, z: Tensor, z0: Tensor, tiny: Tensor) -> Tensor:
    """What comes from above times the slope of a ReLU between z0 and z."""
    return _by_answers(above, z, z0, tiny, torch.relu(z), torch.relu(z0))


def _by_answers(above: Tensor, z: Tensor, z0: Tensor, tiny: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    steep = z + (z0 - tiny)
    return torch.div(
        above, torch.addcdiv(constant(2.0, z.dtype, z.device), steep, y + y0, value=-1, out=steep)
    )


def rescaled(above: Tensor, z: Tensor, y: Tensor, z0: Tensor, y0: Tensor) -> Tensor:
    """What a ReLU passes back: above times its slope, (z+ + z0+) / (|z| + |z0|), 1 or 0 where z is z0.

    As |z| = 2 z+ - z that is above / (2 - (z + z0) / (z+ + z0+)). Of two zeros the baseline's is taken for
    the smallest number below 0, which leads to the slope 0 and changes nothing else.
    """
    tiny = _smallest(z.dtype, z.device)
    if on_host(z):
        return _by_answers(above, z, z0, tiny, y, y0)
    return at_once(RESCALED, rescaled_steps, above, z, z0, tiny)


@lru_cache(maxsize=64)
def _smallest(dtype: torch.dtype, device: torch.device) -> Tensor:
    return constant(torch.finfo(dtype).tiny, dtype, device)


def through_product(
    name: str,
    func: Callable[..., Tensor],
    given: Sequence[Any],
    places: tuple[int, int],
    middle: tuple[Tensor, Tensor],
    above: Tensor,
) -> tuple[Tensor, Tensor]:
    """What a product passes back to each of two: what comes from above, by the middle of the other."""
    a, b = middle
    if func is torch.mul:
        return (above * b).sum_to_size(a.shape), (above * a).sum_to_size(b.shape)
    if name in ("matmul", "bmm") and a.dim() > 2 and a.shape[:-2] == b.shape[:-2] and places == (0, 1):
        return torch.matmul(above, b.mT), torch.matmul(a.mT, above)

    def through(place: int, leaf: Tensor, other: int, fixed: Tensor) -> Tensor:
        leaf, now = leaf.detach().requires_grad_(True), list(given)
        now[place], now[other] = leaf, fixed
        with torch.enable_grad():
            answer = func(*now)
        return pulling([answer], [leaf])([above])[0]

    i, j = places
    return through(i, a, j, b), through(j, b, i, a)


def through_softmax(above: Tensor, z: Tensor, z0: Tensor, dim: int, logarithm: bool = False) -> Tensor:
    """What a softmax passes back, as exp(u) with u = z - log s, s the sum of exp(z); or u, its logarithm."""
    log_s, log_s0 = (v.logsumexp(dim, keepdim=True) for v in (z, z0))
    top = torch.maximum(log_s, log_s0)  # what is exponentiated is at most 1
    sums = _slope((log_s - top).exp(), (log_s0 - top).exp(), log_s, log_s0)
    shares = _slope((z - top).exp(), (z0 - top).exp(), z, z0) / sums
    if not logarithm:
        u, u0 = z - log_s, z0 - log_s0
        above = above * _slope(u.exp(), u0.exp(), u, u0)
    return above - shares * above.sum(dim, keepdim=True)


def _slope(e: Tensor, e0: Tensor, z: Tensor, z0: Tensor) -> Tensor:
    """The slope of an exponential between z0 and z, given its values; where they agree, its gradient."""
    away = z - z0
    # what is masked is minus infinity at both ends, and their difference no number
    near = ~(away.abs() > (1e-10 if z.dtype == torch.float64 else 1e-5))
    return torch.where(near, (e + e0) / 2, (e - e0) / torch.where(near, torch.ones_like(away), away))


def over(given: Tensor, away: Tensor, plain: Tensor) -> Tensor:
    """`given` over the change of the inputs, or the plain gradient where they hardly change."""
    # below this difference a slope would be mostly rounding
    away = F.hardshrink(away, 1e-10 if away.dtype == torch.float64 else 1e-6)
    # 1 where they agree, else 0: arithmetic, which a CPU vectorises as it does not a choice
    near = away.sign().square_().neg_().add_(1)
    return given.div_(away.add_(near)).lerp_(plain, near)


def through_pool(
    pooled: int, z: Tensor, y: Tensor, at: Tensor, z0: Tensor, y0: Tensor, at0: Tensor, above: Tensor
) -> Tensor:
    """What a maximum passes back: its change, to the winner of the side whose maximum is larger.

    Of a rise the input's winner gets the share that it rose by, of a fall the baseline's that it fell by. A
    winner that stays where it was gets all, as in a gradient. Windows are over the last `pooled` axes.
    """
    share = y - y0
    place = torch.where(share < 0, at0, at).flatten(-pooled)
    here = z.flatten(-pooled)
    rise = here.gather(-1, place).sub_(z0.flatten(-pooled).expand_as(here).gather(-1, place))
    share = share.flatten(-pooled).div_(rise).nan_to_num_(1.0).mul_(above.flatten(-pooled))
    return here.new_zeros(here.shape).scatter_add_(-1, place, share).view(z.shape)
