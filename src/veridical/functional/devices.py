"""What depends on where numbers lie, in one place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def on_host(where: Tensor | torch.device) -> bool:
    """Whether numbers lie where numpy reaches them, small steps are cheap, and reading waits for nothing."""
    return _device(where).type == "cpu"


def at_a_time(where: Tensor | torch.device, host: int, elsewhere: int) -> int:
    """How many numbers one step works on: few stay in a processor's caches, a GPU has to be kept busy."""
    return host if on_host(where) else elsewhere


def random_states(where: Tensor | torch.device | None = None) -> list[Any]:
    """The devices beside the host whose random numbers `fork_rng` has to keep; None: the one in use."""
    if where is None:
        return [torch.cuda.current_device()] if torch.cuda.is_available() else []
    return [_device(where)] if _device(where).type == "cuda" else []


def _device(where: Tensor | torch.device) -> torch.device:
    return where.device if isinstance(where, Tensor) else where
