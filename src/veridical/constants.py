"""Numbers that a device is given once: to bring them there waits for it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from veridical.recording import keep_out_of_recordings, shared


def counting(count: int, device: torch.device) -> Tensor:
    """0, 1, 2, ... on the device, never to be written to."""
    return shared(_counting(count, device))


def constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    """These numbers on the device, never to be written to."""
    return shared(_constant(values, device, dtype))


@lru_cache(maxsize=64)
def _counting(count: int, device: torch.device) -> Tensor:
    keep_out_of_recordings("a constant")
    with torch.inference_mode(False):
        return torch.arange(count, device=device)


@lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    keep_out_of_recordings("a constant")
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)
