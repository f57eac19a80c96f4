"""Maps at another size: the products a GPU takes give what torch's own operation gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from veridical.explainers.grid import by_products, interpolated, resized, shares

SIZES = [
    ((10, 10), [28, 28]),
    ((7, 5), [31, 16]),
    ((1, 4), [3, 9]),
    ((12, 9), [5, 9]),  # fewer places, and as many
    ((6,), [20]),
    ((1,), [4]),
]


def maps(grid: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(3, 2, *grid, dtype=torch.float64, generator=draw).to(dtype)


@pytest.mark.parametrize(("grid", "size"), SIZES)
def test_products_resize_as_torch_does(grid: tuple[int, ...], size: list[int]) -> None:
    small = maps(grid)
    expected = interpolated(small, size)
    assert torch.equal(resized(small, size), expected)  # on a CPU torch's own operation, bit for bit
    torch.testing.assert_close(by_products(small, size), expected, rtol=0, atol=1e-14)
    single = by_products(small.float(), size)
    torch.testing.assert_close(single, interpolated(small.float(), size), rtol=0, atol=1e-6)


def test_other_conventions_are_told_apart() -> None:
    small, size = maps((7, 5)), [31, 16]
    corners = torch.nn.functional.interpolate(small, size=size, mode="bilinear", align_corners=True)
    assert float((by_products(small, size) - corners).abs().max()) > 0.1
    turned = by_products(small.mT, size).mT
    assert turned.shape[-2:] != torch.Size(size)


def test_what_a_place_takes_sums_to_one_and_comes_from_its_neighbours() -> None:
    taken = shares(7, 31, torch.float64, torch.device("cpu"))
    assert taken.shape == (31, 7)
    torch.testing.assert_close(taken.sum(1), torch.ones(31, dtype=torch.float64))
    assert bool(((taken > 0).sum(1) <= 2).all())
    place = ((torch.arange(31) + 0.5) * 7 / 31 - 0.5).clamp(0, 6)
    torch.testing.assert_close(taken @ torch.arange(7.0).double(), place.double(), rtol=0, atol=1e-6)
    assert shares(7, 31, torch.float64, torch.device("cpu")) is taken


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats_are_rounded_once(dtype: torch.dtype) -> None:
    small, size = maps((10, 10), dtype), [28, 28]
    found = by_products(small, size)
    assert found.dtype == dtype
    exact = interpolated(small.double(), size)
    off = (found.double() - exact).abs() / exact.abs().clamp(min=0.1)
    assert float(off.max()) < torch.finfo(dtype).eps
    # taken in short floats throughout it would not be
    taken = shares(10, 28, dtype, torch.device("cpu"))
    worse = ((taken @ (small @ taken.mT)).double() - exact).abs() / exact.abs().clamp(min=0.1)
    assert float(worse.max()) > torch.finfo(dtype).eps


def test_a_callers_autocast_is_kept_out() -> None:
    small, size = maps((10, 10), torch.float32), [28, 28]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(by_products(small, size), by_products(maps((10, 10), torch.float32), size))
        found = by_products(small, size)
    torch.testing.assert_close(found, interpolated(small, size), rtol=0, atol=1e-6)
