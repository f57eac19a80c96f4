"""Rows to try every function on, and what must hold of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import torch
from torch import Tensor


def smooth(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tied(*shape: int, seed: int = 0, levels: int = 4) -> Tensor:
    """Rows of very few different values, zero and negative ones among them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-levels // 2, levels // 2 + 1, shape, generator=generator).to(torch.float64)


def mask(*shape: int, seed: int = 0, keep: float = 0.7) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1000 + seed)) < keep


def poisoned(x: Tensor, where: Tensor) -> Tensor:
    """`x` with NaN and infinity wherever it must not be looked at."""
    poison = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.float64)
    return torch.where(where, x, poison[torch.arange(x.shape[-1]) % 3])


def assert_same(got: Tensor, expected: Any, atol: float = 1e-12, rtol: float = 1e-10) -> None:
    """Equal, NaN in the same places, and in float64."""
    assert got.dtype == torch.float64
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got, expected, atol=atol, rtol=rtol, equal_nan=True)


def assert_mask_means_absent(function: Callable[..., Tensor], *rows: Tensor, where: Tensor) -> None:
    """Masked entries change nothing: the result is that of the row written without them."""
    got = function(*(poisoned(x, where) for x in rows), where=where)
    for i in range(where.shape[0]):
        short = function(*(x[i][where[i]] for x in rows))
        assert_same(got[i][where[i]] if got[i].dim() else got[i], short)


def numbers(min_size: int = 2, max_size: int = 12) -> st.SearchStrategy[list[float]]:
    """Rows with ties, zeros, huge and tiny values."""
    common = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.1, 0.3])
    wild = st.floats(-1e150, 1e150, allow_nan=False).map(lambda v: 0.0 if abs(v) < 1e-150 else v)
    return st.lists(st.one_of(common, wild), min_size=min_size, max_size=max_size)


def row(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
