"""Structural similarity of two images."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as nn

from veridical.errors import InputError, ShapeError

from ._rows import align, nan_where

_K1, _K2 = 0.01, 0.03


def ssim(
    a: Tensor,
    b: Tensor,
    where: Tensor | None = None,
    *,
    window: Literal["uniform", "gaussian"] = "uniform",
    size: int | None = None,
    sigma: float = 1.5,
    data_range: float | None = None,
    sample_covariance: bool = True,
) -> Tensor:
    """Compare the local structure of images of shape (..., H, W), 1 meaning identical (Wang et al. 2004).

    `(2 m_a m_b + C1)(2 v_ab + C2) / ((m_a^2 + m_b^2 + C1)(v_a + v_b + C2))` in every window that lies inside
    the image, then the mean over windows; `C1 = (0.01 R)^2`, `C2 = (0.03 R)^2`. The window is `size` pixels
    wide, by default 7 for "uniform" and 11 for "gaussian" with its `sigma` of 1.5. With `sample_covariance`
    (co)variances are divided by one less than the window's pixels, as scikit-image does; Wang et al. do not.

    The data range R: attribution maps have no natural range, so unless `data_range` is given R is the largest
    less the smallest value of each pair of images together. Two images that are one and the same constant
    score 1. Windows that touch a masked pixel are left out; NaN if none remains.

    >>> image = torch.arange(64.0).reshape(8, 8)
    >>> ssim(image, image).item()
    1.0
    """
    if a.dim() < 2 or b.dim() < 2:
        raise ShapeError(f"expected images (..., H, W), got {tuple(a.shape)} and {tuple(b.shape)}")
    a, b, valid = align(where, a=a, b=b)
    height, width = a.shape[-2:]
    kernel = _kernel(window, size, sigma, a.device)
    size = kernel.numel()
    if min(height, width) < size:
        raise ShapeError(
            f"images of {height} x {width} are smaller than the window of {size} x {size}; give size="
        )

    a, b = torch.where(valid, a, 0.0), torch.where(valid, b, 0.0)
    high = torch.where(valid, torch.maximum(a, b), -torch.inf).amax((-2, -1), keepdim=True)
    low = torch.where(valid, torch.minimum(a, b), torch.inf).amin((-2, -1), keepdim=True)
    spread = high - low if data_range is None else torch.full_like(high, data_range)
    c1, c2 = (_K1 * spread).square(), (_K2 * spread).square()

    # Second moments are taken around a value inside the data: far from zero, E[x^2] - E[x]^2 would cancel.
    middle = torch.where(valid.any(-1, keepdim=True).any(-2, keepdim=True), low, 0.0)
    a, b = torch.where(valid, a - middle, 0.0), torch.where(valid, b - middle, 0.0)
    mean_a, mean_b = _smooth(a, kernel), _smooth(b, kernel)
    unbiased = size**2 / (size**2 - 1) if sample_covariance else 1.0
    var_a = unbiased * (_smooth(a * a, kernel) - mean_a * mean_a).clamp(min=0.0)
    var_b = unbiased * (_smooth(b * b, kernel) - mean_b * mean_b).clamp(min=0.0)
    cov = unbiased * (_smooth(a * b, kernel) - mean_a * mean_b)
    mean_a, mean_b = mean_a + middle, mean_b + middle
    top = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    bottom = (mean_a.square() + mean_b.square() + c1) * (var_a + var_b + c2)
    # Only two equal constants (or, with no range at all, two equal flat patches) leave nothing to divide by.
    local = torch.where((bottom == 0) & (top == 0), 1.0, top / bottom)

    inside = _smooth(valid.to(torch.float64), torch.ones_like(kernel)) > size**2 - 0.5
    count = inside.sum((-2, -1))
    total = torch.where(inside, local, 0.0).sum((-2, -1))
    return nan_where(count == 0, total / count.clamp(min=1))


def _kernel(window: str, size: int | None, sigma: float, device: torch.device) -> Tensor:
    if window not in ("uniform", "gaussian"):
        raise InputError(f"window must be 'uniform' or 'gaussian', got {window!r}")
    size = size if size is not None else (7 if window == "uniform" else 11)
    if size < 3 or size % 2 == 0:
        raise InputError(f"size must be an odd number of at least 3 pixels, got {size}")
    distance = torch.arange(size, dtype=torch.float64, device=device) - size // 2
    flat = window == "uniform"
    weights = torch.ones_like(distance) if flat else torch.exp(-0.5 * (distance / sigma).square())
    return weights / weights.sum()


def _smooth(image: Tensor, kernel: Tensor) -> Tensor:
    """The weighted mean over each window that lies inside the image: rows first, then columns."""
    flat = image.reshape(-1, 1, *image.shape[-2:])
    flat = nn.conv2d(nn.conv2d(flat, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))
    return flat.reshape(*image.shape[:-2], *flat.shape[-2:])
