"""How far apart two explanations are, and the scale they are brought to before that is asked."""

from __future__ import annotations

import torch
from torch import Tensor

from ._rows import SMALLEST, align, as_double, over_largest, whole_largest


def rms_normalise(e: Tensor, where: Tensor | None = None) -> Tensor:
    """Divide each map by its root mean square, signs kept (GEF eq. 21, MetaQuantus eq. 28).

    `e / sqrt(mean(e^2))` over the valid entries. A map of zeros stays a map of zeros, and masked entries come
    back as zero.

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
