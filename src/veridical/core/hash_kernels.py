"""Several steps as one kernel: on a GPU every step by itself is a launch and a pass over memory.

The integer hashes of `rng`, and what explainers do to every activation of a model. torch compiles them when
they are first needed. Where it cannot, or where a kernel answers otherwise than the steps it stands for,
`kernel` gives None and the steps are taken: draws are bit-equal everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

log = logging.getLogger("veridical")

Steps = Callable[..., Tensor]

MIX = """
template <typename T> T mix(T value) {
    unsigned long long x = (unsigned long long)value;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return (T)(x ^ (x >> 31));
}
"""

TICKET = """
template <typename T> T ticket(T place, T factor, T shift) {
    unsigned int x = (unsigned int)place * (unsigned int)factor + (unsigned int)shift;
    x &= 0x7FFFFFFFu;
    return (T)((x ^ (x >> 15)) * 0xD35A2D97u);
}
"""


@lru_cache(maxsize=32)
def kernel(source: str, steps: Steps, dtype: torch.dtype, device: torch.device) -> Steps | None:
    """`steps` as one kernel, checked against them on this device, or None."""
    if device.type != "cuda":
        return None
    try:
        fused: Steps = torch.cuda.jiterator._create_jit_fn(source)
        trial = trials(source, dtype, device)
        if same(fused(*trial), steps(*trial)):
            return fused
        log.warning("a fused kernel differs from its steps on %s; the steps are taken", device)
    except Exception as error:
        log.info("no fused kernel on %s: %s", device, error)
    return None


def at_once(source: str, steps: Steps, *tensors: Tensor) -> Tensor:
    """What the steps give, by one kernel where there is one."""
    first = tensors[0]
    if not first.is_cuda or any(tensor.dtype != first.dtype for tensor in tensors):
        return steps(*tensors)
    once = kernel(source, steps, first.dtype, first.device)
    return steps(*tensors) if once is None else once(*tensors)


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, what is no number in both included."""
    return one.dtype == other.dtype and bool(((one == other) | ((one != one) & (other != other))).all())


def trials(source: str, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Arguments that meet signs, zero and both ends of the range, each with each of the others."""
    if dtype.is_floating_point:
        ends = torch.finfo(dtype)
        chosen = [0.0, -0.0, 1.0, -1.0, 0.3, -1.7, ends.tiny, -ends.tiny, ends.max, ends.min, 1e-3]
        first = torch.tensor(chosen, dtype=dtype, device=device)
    else:
        info = torch.iinfo(dtype)
        numbers = torch.tensor([0, 1, -1, 2, -2, info.min, info.max, info.max // 3, info.min // 7])
        first = numbers.to(device=device, dtype=dtype)
    count = source.split(")", 1)[0].count("T ") - 1  # the result's type is no argument
    given = [first, *(first.flip(0).roll(turn)[:, None] for turn in range(1, count))]
    return [each.contiguous() for each in torch.broadcast_tensors(*given)]
