"""Measures of a map and of two maps: distances, concentration, similarity of images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as nn

from veridical.errors import InputError, ShapeError
from veridical.functional._rows import SMALLEST, align, as_double, nan_where, over_largest, whole_largest


def rms_normalise(e: Tensor, where: Tensor | None = None) -> Tensor:
    """Divide each map by its root mean square, signs kept (GEF eq. 21, MetaQuantus eq. 28).

    `e / sqrt(mean(e^2))` over the valid entries. A map of zeros stays a map of zeros, and masked entries come
    back as zero.

    Parameters
    ----------
    e : Tensor
        Maps (..., D).
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Maps (..., D) with a root mean square of 1.

    Examples
    --------
    >>> rms_normalise(torch.tensor([[3.0, -3.0], [0.0, 0.0]])).tolist()
    [[1.0, -1.0], [0.0, 0.0]]
    """
    if where is None and e.dim() and e.shape[-1]:
        return _over_rms(as_double(e, "e"))
    e, valid = align(where, e=e)
    scaled = over_largest(e, valid)
    count = valid.sum(-1, keepdim=True).clamp(min=1)
    rms = (scaled.square().sum(-1, keepdim=True) / count).sqrt()
    return scaled / torch.where(rms == 0, 1.0, rms)


def _over_rms(e: Tensor) -> Tensor:
    """The same where every entry is valid, in half the steps."""
    # zeros are zeros in any unit, so that of a row of them need only not be 0
    scaled = e / whole_largest(e).clamp_(min=SMALLEST)
    rms = torch.linalg.vector_norm(scaled, 2, -1, keepdim=True).div_(e.shape[-1] ** 0.5)
    return scaled.div_(rms.clamp_(min=SMALLEST))


def euclidean(a: Tensor, b: Tensor, where: Tensor | None = None) -> Tensor:
    """Measure the straight distance between rows: `sqrt(sum (a - b)^2)` over the valid entries.

    Parameters
    ----------
    a : Tensor
        Rows (..., D).
    b : Tensor
        Rows of the same length.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Distances (...).

    Examples
    --------
    >>> euclidean(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])).item()
    5.0
    """
    if where is None and a.shape == b.shape and a.dim() and a.shape[-1]:
        return _whole_length(as_double(a, "a") - as_double(b, "b"))
    a, b, valid = align(where, a=a, b=b)
    if where is not None:
        # Masked entries are emptied first: infinity minus infinity would otherwise leak out of them as NaN.
        a, b = torch.where(valid, a, 0.0), torch.where(valid, b, 0.0)
    return _length(a - b)


def cosine_distance(a: Tensor, b: Tensor, where: Tensor | None = None) -> Tensor:
    """Measure how differently two rows point, from 0 (same direction) to 2 (opposite).

    `1 - a.b / (|a||b|)`; 1 if exactly one of the vectors is zero, 0 if both are.

    Parameters
    ----------
    a : Tensor
        Rows (..., D).
    b : Tensor
        Rows of the same length.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Distances (...) in [0, 2].

    Examples
    --------
    >>> cosine_distance(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])).tolist()
    [0.0, 1.0, 1.0]
    """
    a, b, valid = align(where, a=a, b=b)
    a, b = over_largest(a, valid), over_largest(b, valid)
    a_length, b_length = _length(a), _length(b)
    a = a / torch.where(a_length == 0, 1.0, a_length).unsqueeze(-1)
    b = b / torch.where(b_length == 0, 1.0, b_length).unsqueeze(-1)
    # Half the squared chord equals 1 - cos, without cancelling for nearly parallel vectors: equal directions
    # differ by rounding only, and equal vectors are exactly 0 apart.
    distance = ((a - b).square().sum(-1) / 2).clamp(max=2.0)
    return torch.where((a_length == 0) != (b_length == 0), 1.0, distance)


def _whole_length(x: Tensor) -> Tensor:
    largest = whole_largest(x).clamp_(min=SMALLEST)
    return torch.linalg.vector_norm(x / largest, 2, -1) * largest[..., 0]


def _length(x: Tensor) -> Tensor:
    """The length of rows that are 0 where they are masked."""
    if x.shape[-1] == 0:  # amax refuses empty rows
        return x.new_zeros(x.shape[:-1])
    scale = x.abs().amax(-1)
    return (x / torch.where(scale == 0, 1.0, scale)[..., None]).square().sum(-1).sqrt_().mul_(scale)


def gini(x: Tensor, where: Tensor | None = None) -> Tensor:
    """Measure how unequally magnitude is spread: 0 if evenly, (D-1)/D if one entry has it all.

    `sum_i (2i - D - 1) |x|_(i) / (D sum |x|)`, |x| ascending, i = 1..D (Hurley & Rickard 2009; Chalasani et
    al. 2020; MetaQuantus eq. 22 divided by D sum|x|, not by D(D-1) sum|x|). NaN for a map of zeros.

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Coefficients (...) in [0, 1), or NaN.

    Examples
    --------
    >>> gini(torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, -5.0]])).tolist()
    [0.0, 0.75]
    """
    x, valid = align(where, x=x)
    magnitude = over_largest(x, valid).abs()  # masked entries are 0
    masked_first = torch.where(valid, magnitude, -1.0)
    ascending = torch.sort(masked_first, dim=-1).values.clamp(min=0.0)
    count = valid.sum(-1, keepdim=True)
    rank = torch.arange(1, x.shape[-1] + 1, device=x.device) - (x.shape[-1] - count)
    total = magnitude.sum(-1)
    index = ((2 * rank - count - 1) * ascending).sum(-1) / (count.squeeze(-1) * total)
    # Rounding alone could push a perfectly even row below 0; NaN passes through the clamp.
    return nan_where(total == 0, index.clamp(min=0.0))


def entropy(x: Tensor, where: Tensor | None = None) -> Tensor:
    """Measure how many entries share the magnitude, in nats: 0 for one, log D if all share evenly.

    `-sum p log p` with the fractional contribution `p = |x| / sum |x|` (Bhatt et al. 2020). NaN for a map of
    zeros.

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Entropies (...) in nats, or NaN.

    Examples
    --------
    >>> entropy(torch.tensor([[1.0, -1.0], [0.0, 3.0]])).tolist()
    [0.6931471805599453, 0.0]
    """
    x, valid = align(where, x=x)
    magnitude = over_largest(x, valid).abs()
    total = magnitude.sum(-1, keepdim=True)
    return nan_where(total.squeeze(-1) == 0, torch.special.entr(magnitude / total).sum(-1))


def histogram_entropy(x: Tensor, bins: int = 100, where: Tensor | None = None) -> Tensor:
    """Measure how varied the values of a row are, in nats.

    `-sum_b p_b log p_b` with p_b the share of entries in bin b of `bins` equal bins from the row's own
    minimum to its own maximum, the last bin closed. 0 for a constant row; NaN for a row with no valid entry.

    Parameters
    ----------
    x : Tensor
        Rows (..., D).
    bins : int
        How many bins.
    where : Tensor, optional
        Boolean mask of the entries that count, broadcast against the rows.

    Returns
    -------
    Tensor
        Entropies (...) in nats, or NaN.

    Examples
    --------
    >>> histogram_entropy(torch.tensor([0.0, 0.0, 1.0, 1.0]), bins=10).item()
    0.6931471805599453
    """
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    x, valid = align(where, x=x)
    if x.shape[-1] == 0:
        return x.new_full(x.shape[:-1], torch.nan)
    low = torch.where(valid, x, torch.inf).amin(-1, keepdim=True)
    high = torch.where(valid, x, -torch.inf).amax(-1, keepdim=True)
    undefined = ~(low <= high) | low.isinf() | high.isinf()
    low, high = torch.where(undefined, 0.0, low), torch.where(undefined, 1.0, high)
    edges = low + torch.arange(1, bins, device=x.device) * ((high - low) / bins)
    # Only the inner edges: what lies under the first is in bin 0, and the maximum is in the last bin.
    bin_of = torch.searchsorted(edges.contiguous(), torch.where(valid, x, low).contiguous(), right=True)
    bin_of = torch.where(low == high, 0, bin_of)
    counts = torch.zeros((*x.shape[:-1], bins), dtype=torch.float64, device=x.device)
    counts.scatter_add_(-1, bin_of, valid.to(torch.float64))
    share = counts / valid.sum(-1, keepdim=True)
    return nan_where(undefined.squeeze(-1), torch.special.entr(share).sum(-1))


_K1, _K2 = 0.01, 0.03


def ssim(a: Tensor, b: Tensor, *, size: int = 7) -> Tensor:
    """Compare the local structure of images of shape (..., H, W), 1 meaning identical (Wang et al. 2004).

    `(2 m_a m_b + C1)(2 v_ab + C2) / ((m_a^2 + m_b^2 + C1)(v_a + v_b + C2))` in every window that lies inside
    the image, then the mean over windows; `C1 = (0.01 R)^2`, `C2 = (0.03 R)^2`. All pixels of a window weigh
    alike, and (co)variances are divided by one less than their number, as scikit-image does.

    The data range R: attribution maps have no natural range, so R is the largest less the smallest value of
    each pair of images together. Two images that are one and the same constant
    score 1.

    Parameters
    ----------
    a : Tensor
        Images (..., H, W).
    b : Tensor
        Images of the same shape.
    size : int
        Width of a window in pixels, an odd number of at least 3.

    Returns
    -------
    Tensor
        Similarities (...), at most 1.

    Examples
    --------
    >>> image = torch.arange(64.0).reshape(8, 8)
    >>> ssim(image, image).item()
    1.0
    """
    if a.dim() < 2 or b.dim() < 2:
        raise ShapeError(f"expected images (..., H, W), got {tuple(a.shape)} and {tuple(b.shape)}")
    a, b, _ = align(None, a=a, b=b)
    height, width = a.shape[-2:]
    if size < 3 or size % 2 == 0:
        raise InputError(f"size must be an odd number of at least 3 pixels, got {size}")
    kernel = torch.ones(size, dtype=torch.float64, device=a.device) / size
    if min(height, width) < size:
        raise ShapeError(
            f"images of {height} x {width} are smaller than the window of {size} x {size}; give size="
        )

    high = torch.maximum(a, b).amax((-2, -1), keepdim=True)
    low = torch.minimum(a, b).amin((-2, -1), keepdim=True)
    spread = high - low
    c1, c2 = (_K1 * spread).square(), (_K2 * spread).square()

    # Second moments are taken around a value inside the data: far from zero, E[x^2] - E[x]^2 would cancel.
    a, b = a - low, b - low
    mean_a, mean_b = _smooth(a, kernel), _smooth(b, kernel)
    unbiased = size**2 / (size**2 - 1)
    var_a = unbiased * (_smooth(a * a, kernel) - mean_a * mean_a).clamp(min=0.0)
    var_b = unbiased * (_smooth(b * b, kernel) - mean_b * mean_b).clamp(min=0.0)
    cov = unbiased * (_smooth(a * b, kernel) - mean_a * mean_b)
    mean_a, mean_b = mean_a + low, mean_b + low
    top = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    bottom = (mean_a.square() + mean_b.square() + c1) * (var_a + var_b + c2)
    # Only two equal constants (or, with no range at all, two equal flat patches) leave nothing to divide by.
    return torch.where((bottom == 0) & (top == 0), 1.0, top / bottom).mean((-2, -1))


def _smooth(image: Tensor, kernel: Tensor) -> Tensor:
    """The weighted mean over each window that lies inside the image: rows first, then columns."""
    flat = image.reshape(-1, 1, *image.shape[-2:])
    flat = nn.conv2d(nn.conv2d(flat, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))
    return flat.reshape(*image.shape[:-2], *flat.shape[-2:])
