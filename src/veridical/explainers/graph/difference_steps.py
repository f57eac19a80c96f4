"""What non-linear operations pass back of differences: rectifiers, softmax, maxima, other functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.explainers.graph.relevance_elements import constant
from veridical.random.hash_kernels import at_once

RESCALED = """
template <typename T> T rescaled(T above, T z, T z0, T y, T y0, T tiny) {
    return above / (2 - (z + (z0 - tiny)) / (y + y0));
}
"""


def rescaled_steps(above: Tensor, z: Tensor, z0: Tensor, y: Tensor, y0: Tensor, tiny: Tensor) -> Tensor:
    """What comes from above times the slope of a ReLU between z0 and z, given its answers."""
    steep = z + (z0 - tiny)
    return torch.div(
        above, torch.addcdiv(constant(2.0, z.dtype, z.device), steep, y + y0, value=-1, out=steep)
    )


def _through_rectifier(z: Tensor, z0: Tensor, y: Tensor, y0: Tensor) -> Callable[[Tensor], tuple[Tensor]]:
    """What a ReLU passes back: above times its slope, (z+ + z0+) / (|z| + |z0|), 1 or 0 where z is z0.

    As |z| = 2 z+ - z that is above / (2 - (z + z0) / (z+ + z0+)). Of two zeros the baseline's is taken for
    the smallest number below 0, which leads to the slope 0 and changes nothing else.
    """
    tiny = constant(torch.finfo(z.dtype).tiny, z.dtype, z.device)
    return lambda above: (at_once(RESCALED, rescaled_steps, above, z, z0, y, y0, tiny),)


def _through_softmax(
    z: Tensor, z0: Tensor, dim: int, logarithm: bool = False
) -> Callable[[Tensor], tuple[Tensor]]:
    """What a softmax passes back, as exp(u) with u = z - log s, s the sum of exp(z); or u, its logarithm."""
    log_s, log_s0 = (v.logsumexp(dim, keepdim=True) for v in (z, z0))
    top = torch.maximum(log_s, log_s0)  # what is exponentiated is at most 1
    sums = _slope((log_s - top).exp(), (log_s0 - top).exp(), log_s, log_s0)
    shares = _slope((z - top).exp(), (z0 - top).exp(), z, z0) / sums
    u, u0 = z - log_s, z0 - log_s0
    own = None if logarithm else _slope(u.exp(), u0.exp(), u, u0)

    def back(above: Tensor) -> tuple[Tensor]:
        given = above if own is None else above * own
        return (given - shares * given.sum(dim, keepdim=True),)

    return back


def _slope(e: Tensor, e0: Tensor, z: Tensor, z0: Tensor) -> Tensor:
    """The slope of an exponential between z0 and z, given its values; where they agree, its gradient."""
    away = z - z0
    # what is masked is minus infinity at both ends, and their difference no number
    near = ~(away.abs() > (1e-10 if z.dtype == torch.float64 else 1e-5))
    return torch.where(near, (e + e0) / 2, (e - e0) / torch.where(near, torch.ones_like(away), away))


def _over(given: Tensor, away: Tensor, plain: Tensor) -> Tensor:
    """`given` over the change of the inputs, or the plain gradient where they hardly change."""
    # below this difference a slope would be mostly rounding
    away = F.hardshrink(away, 1e-10 if away.dtype == torch.float64 else 1e-6)
    # 1 where they agree, else 0: arithmetic, which a CPU vectorises as it does not a choice
    near = away.sign().square_().neg_().add_(1)
    return given.div_(away.add_(near)).lerp_(plain, near)


def _through_pool(
    z: Tensor, z0: Tensor, y: Tensor, y0: Tensor, at: Tensor, at0: Tensor, pooled: int
) -> Callable[[Tensor], tuple[Tensor]]:
    """What a maximum passes back: its change, to the winner of the side whose maximum is larger.

    Of a rise the input's winner gets the share that it rose by, of a fall the baseline's that it fell by. A
    winner that stays where it was gets all, as in a gradient.
    """
    whole = z.shape
    z, z0, y, y0, at, at0 = (part.flatten(-pooled) for part in (z, z0, y, y0, at, at0))
    share = y - y0
    place = torch.where(share < 0, at0, at)
    share = share.div_(z.gather(-1, place).sub_(z0.gather(-1, place))).nan_to_num_(1.0)

    def back(above: Tensor) -> tuple[Tensor]:
        passed = share * above.reshape(share.shape)
        return (passed.new_zeros(z.shape).scatter_add_(-1, place, passed).view(whole),)

    return back
