"""Least squares over truth values: products of masks and the systems they lead to, one per sample."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from veridical.functional.devices import at_a_time, no_autocast, on_host

_SOLVER_ELEMENTS = 2**25, 2**28  # float64 numbers a block of samples may take: on a CPU, elsewhere
_EXACT_IN_HALF = 2**11  # up to which 16-bit floats have all whole numbers
_ALIGNED = 8  # rows of 16-bit floats that a GPU reads fast are a multiple of so many
_LEAF = 64  # the largest system that is factored as it is on a GPU


def sample_blocks(samples: int, elements_per_sample: int, device: torch.device) -> Iterator[slice]:
    """Cut the samples so that the arrays of one block stay within a fixed memory."""
    most = at_a_time(device, *_SOLVER_ELEMENTS)
    size = max(1, most // max(1, elements_per_sample))
    for at in range(0, samples, size):
        yield slice(at, min(samples, at + size))


def shared_counts(truths: Tensor) -> Tensor:
    """How many features each two rows have in common: (B, M, V) truth values -> (B, M, M), in float64.

    Exact either way. A CPU takes products of 8-bit integers several times faster than others. A GPU is given
    stretches of features, since few rows and many features are little to do side by side; half floats count
    exactly as far as a stretch is long.
    """
    ones = truths.view(torch.uint8)
    if on_host(ones) and hasattr(torch, "_int_mm"):  # torch does not promise it
        counts = ones.new_empty(*ones.shape[:-1], ones.shape[-2], dtype=torch.float64)
        for each, into in zip(ones, counts, strict=True):
            into.copy_(_products(each.view(torch.int8)))
        return counts
    return _in_stretches(ones)


def _products(ones: Tensor) -> Tensor:
    """The 8-bit matrix times its transpose, in 32 bits."""
    found: Tensor = torch._int_mm(ones, ones.mT)
    return found


def _in_stretches(ones: Tensor) -> Tensor:
    """The same by half floats, over stretches of features that are summed in float64.

    Both are made multiples of 8 long, since other products take a GPU several times as long: features that
    are nowhere count nothing, and what the rows beyond the last count is cut off.
    """
    batch, rows, features = ones.shape
    count = -(-features // _EXACT_IN_HALF)
    width, height = _aligned(-(-features // count)), _aligned(rows)
    shown = ones.new_empty(batch, height, count * width, dtype=torch.float16)
    shown[:, :rows, :features] = ones
    shown[..., features:] = 0
    shown = shown.unflatten(-1, (count, width)).transpose(1, 2)
    with no_autocast(ones):
        counts = shown @ shown.mT
    added = counts[:, 0].double() if count == 1 else counts.sum(1, dtype=torch.float64)
    return added[:, :rows, :rows]


def _aligned(length: int) -> int:
    return length + -length % _ALIGNED


def solved(gram: Tensor, right: Tensor) -> Tensor:
    """X of gram X = right, (B, M, M) and (B, M, K), for a symmetric positive definite gram; else NaN.

    The gram may be written over.
    """
    by = _solved_by_factor if on_host(gram) or gram.shape[-1] <= _LEAF else _solved_in_blocks
    return by(gram, right)


def _solved_by_factor(gram: Tensor, right: Tensor) -> Tensor:
    # asked without a check, which would wait for a GPU
    factor, failed = torch.linalg.cholesky_ex(gram)
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    found: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return found.masked_fill_((failed != 0)[..., None, None], torch.nan)


def _solved_in_blocks(gram: Tensor, right: Tensor) -> Tensor:
    """The same almost by products alone, the one thing at which a GPU is fast with many small matrices.

    With gram = [[A, B'], [B, C]], A = LL' and N = B L'^-1, the lower half of X solves
    (C - NN') X2 = R2 - N L^-1 R1, and the upper one is X1 = L'^-1 (L^-1 R1 - N' X2).
    """
    if gram.shape[-1] <= _LEAF:
        inverse = _inverse_leaf(gram)
        return inverse.mT @ (inverse @ right)
    cut = _cut(gram.shape[-1])
    inverse = gram.new_zeros(len(gram), cut, cut)
    below = _eliminated(gram, cut, inverse)
    half = inverse @ right[:, :cut]
    last = _solved_in_blocks(gram[:, cut:, cut:], right[:, cut:] - below @ half)
    return torch.cat([inverse.mT @ (half - below.mT @ last), last], 1)


def _eliminated(gram: Tensor, cut: int, inverse: Tensor) -> Tensor:
    """N and, written to the inverse, L^-1; C becomes C - NN'."""
    _invert_factor(gram[:, :cut, :cut], inverse)
    below = gram[:, cut:, :cut] @ inverse.mT
    gram[:, cut:, cut:].baddbmm_(below, below.mT, alpha=-1)
    return below


def _invert_factor(gram: Tensor, out: Tensor) -> None:
    """Write the inverse of the lower Cholesky factor to `out`, which holds zeros."""
    if gram.shape[-1] <= _LEAF:
        out.copy_(_inverse_leaf(gram))
        return
    cut = _cut(gram.shape[-1])
    first, last = out[:, :cut, :cut], out[:, cut:, cut:]
    below = _eliminated(gram, cut, first)
    _invert_factor(gram[:, cut:, cut:], last)
    out[:, cut:, :cut].baddbmm_(last, below @ first, alpha=-1)


def _inverse_leaf(gram: Tensor) -> Tensor:
    """The inverse of the lower Cholesky factor, by itself; all NaN where there is none."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    unit = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    unit = torch.where((failed == 0)[:, None, None], unit, torch.nan)
    inverse: Tensor = torch.linalg.solve_triangular(factor, unit, upper=False)
    return inverse


def _cut(size: int) -> int:
    """Where to cut a system in two: whole leaves in front, as many as behind or one fewer."""
    return _LEAF * (-(-size // _LEAF) // 2)


def least_squares(rows: Tensor, responses: Tensor, weights: Tensor, ridge: Tensor | float) -> Tensor:
    """The coefficients (B, V) that minimise sum_m w_m (y_m - rows_m . b)^2 + ridge |b|^2, one fit per sample.

    Solved over the smaller of masks and features, as X'(XX' + rI)^-1 = (X'X + rI)^-1 X'. A column of
    zeros gets the coefficient 0.
    """
    root = weights.sqrt()
    X, y = rows * root[..., None], responses * root
    wide = X.shape[-1] > X.shape[-2]
    gram = X @ X.mT if wide else X.mT @ X
    size = torch.as_tensor(ridge, dtype=X.dtype, device=X.device)
    gram = gram + size[..., None, None] * torch.eye(gram.shape[-1], dtype=X.dtype, device=X.device)
    found = X.mT @ solved(gram, y[..., None]) if wide else solved(gram, X.mT @ y[..., None])
    return found[..., 0]
