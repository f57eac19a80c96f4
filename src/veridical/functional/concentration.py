"""How few features carry an explanation."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.errors import InputError

from ._rows import align, nan_where, over_largest


def gini(x: Tensor, where: Tensor | None = None) -> Tensor:
    """Measure how unequally magnitude is spread: 0 if evenly, (D-1)/D if one entry has it all.

    `sum_i (2i - D - 1) |x|_(i) / (D sum |x|)`, |x| ascending, i = 1..D (Hurley & Rickard 2009; Chalasani et
    al. 2020; MetaQuantus eq. 22 divided by D sum|x|, not by D(D-1) sum|x|). NaN for a map of zeros.

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
