"""How far a surrogate's outputs are from the model's: one number per sample, streamed over embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from veridical.concepts.embeddings import Embeddings
from veridical.concepts.head import Head
from veridical.functional import spearman
from veridical.functional.devices import at_a_time, on_host

_ELEMENTS = 2**20
"""Numbers of the widest tensor of a chunk: 8 MiB in float64, enough rows for products to be efficient."""
_NEAR = 2**18
"""Outputs that are compared at a time: 2 MiB, few enough for a processor's cache and many enough to share."""

_FEW = 64
"""Outputs up to which rows are short: torch's own reductions then cost more than products with ones."""

_ROUNDING = 1e-12
"""A difference below this share of a row's largest output is none."""

_CACHED = 2**17
"""Numbers of embeddings that a thread turns into float64 at a time: 1 MiB, which its cache holds."""

Surrogate = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LinearSurrogate:
    """`W h + c` (C, D), (C,); positions (N, J, D) are read one by one and averaged."""

    weight: Tensor
    constant: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        if h.dim() == 3:
            h = h.mean(1)
        if not on_host(h) or h.dtype == torch.float64 or len(self.weight) > 2 * _FEW:
            return torch.addmm(self.constant, h.double(), self.weight.T)
        # so narrow a product costs little more than reading what it multiplies, which must stay in the cache
        rows = max(1, _CACHED * torch.get_num_threads() // max(1, h.shape[1]))
        # laid out as comparisons want it, a column per output, while the answers are still at hand
        found = torch.empty(len(self.weight), len(h), dtype=torch.float64).T
        near = torch.empty(min(rows, len(h)), h.shape[1], dtype=torch.float64)
        turned = self.weight.T.contiguous()
        for few, answers in zip(h.split(rows), found.split(rows), strict=True):
            answers.copy_(torch.addmm(self.constant, near[: len(few)].copy_(few), turned))
        return found


def chunks(count: int, width: int, most: int = _ELEMENTS) -> Iterator[slice]:
    """Slices of rows whose widest tensor, `width` numbers per row, stays within a fixed size."""
    rows = max(1, most // max(1, width))
    for at in range(0, count, rows):
        yield slice(at, min(count, at + rows))


def absolute_error(y: Tensor, guess: Tensor) -> Tensor:
    """Mean over outputs of `|y - y_hat|`: SURF_MAE (eq. 11) of each sample."""
    return row_sums((y - guess).abs_()) / y.shape[-1]


def moved_mass(p: Tensor, guess: Tensor) -> Tensor:
    """`sum_i |p_i - p_hat_i| / 2`, the total variation: SURF_EMD (eq. 12) of each sample."""
    return row_sums((p - guess).abs_()) / 2


def row_sums(values: Tensor) -> Tensor:
    """Sums over outputs, as a product with ones."""
    return values @ values.new_ones(values.shape[-1])


def distribution(head: Head, y: Tensor, top: Tensor) -> Tensor:
    """The head's probabilities, given the largest output of each row."""
    if y.shape[-1] > _FEW:
        return head.probabilities(y)
    raised = y - top[:, None]
    raised = (raised.div_(2) if head.kind == "binary" else raised).exp_()
    return raised / row_sums(raised)[:, None]


def normalised_error(y: Tensor, guess: Tensor, labels: Tensor) -> Tensor:
    """`|y_t - y_hat_t| / |y_t|` on the true class (eq. 5); NaN where the model's logit is 0."""
    truth = y.gather(1, labels[:, None]).squeeze(1)
    error = (truth - guess.gather(1, labels[:, None]).squeeze(1)).abs()
    return torch.where(truth == 0, torch.nan, error / truth.abs())


def settled(guess: Tensor, y: Tensor) -> Tensor:
    """The guess with the model's own value where the two differ by rounding only (1e-12 of the row's scale).

    A perfect explanation then scores exactly 0, and no last bit decides a rank.
    """
    rounding = _ROUNDING * y.abs().amax(-1, keepdim=True)
    return torch.where((guess - y).abs_() <= rounding, y, guess)


def compare(
    surrogate: Surrogate,
    embeddings: Embeddings,
    head: Head,
    width: int = 1,
    companions: bool = True,
    positions: bool = False,
) -> dict[str, Tensor]:
    """All measures that apply to the head, one value per sample each (N,).

    The model's outputs are `F h + b` in float64 where the head is exact, so that a perfect explanation
    scores 0 and not the rounding of the model; otherwise they are the model's own.
    """
    kept: dict[str, list[Tensor]] = {}
    each = embeddings.values.shape[1] if positions else 1
    both = _joined(surrogate, head, positions)
    widest = max(embeddings.values[0].numel(), head.n_outputs, width * each)
    if both is not None and not embeddings.spatial and on_host(embeddings.values):
        widest = 2 * head.n_outputs  # embeddings are read where they lie
    for piece in chunks(len(embeddings), widest):
        part = embeddings.take(piece)
        if both is not None and not companions:
            answers = both(part.pooled)
            for near in chunks(len(answers), head.n_outputs, _NEAR):
                for name, values in _side_by_side(answers[near], head).items():
                    kept.setdefault(name, []).append(values)
            continue
        if both is not None:
            y, guess = (side.contiguous() for side in both(part.pooled).chunk(2, 1))
            straight = None
        else:
            h = (part.values if positions and part.spatial else part.pooled).double()
            y = head.outputs(h) if head.exact else part.outputs.double()
            guess = surrogate(h)
            straight = None if head.exact else head.outputs(h)
        for near in chunks(len(y), head.n_outputs, at_a_time(y, _NEAR, _ELEMENTS)):
            labels = None if part.labels is None else part.labels[near]
            own = settled(guess[near], y[near])
            found = _of_head(y[near], own, head, labels, companions)
            if straight is not None:
                found |= {
                    "linearisation": absolute_error(y[near], straight[near]),
                    "explanation": absolute_error(straight[near], own),
                }
            for name, values in found.items():
                kept.setdefault(name, []).append(values)
    return {name: torch.cat(values) for name, values in kept.items()}


def _side_by_side(answers: Tensor, head: Head) -> dict[str, Tensor]:
    """All but the companions, for outputs of the model beside those of its surrogate (N, 2C), few of them.

    Samples run fastest here: steps over a handful of outputs are then as long as there are samples.
    """
    both = answers.T.contiguous().view(2, head.n_outputs, -1)
    y, guess = both
    own_top = y.amax(0)
    largest = torch.maximum(own_top, y.amin(0).neg_())
    away = (y - guess).abs_()
    largest.mul_(_ROUNDING)
    if not on_host(y) or not bool(away.amin() > largest.amax()):  # on a CPU a look costs little
        rounding = away <= largest
        torch.where(rounding, y, guess, out=guess)
        away.masked_fill_(rounding, 0)
    found = {"mae": away.mean(0)}
    found["squared"] = away.square_().mean(0)
    if head.kind == "multilabel":
        found["attributes"] = ((y > 0) == (guess > 0)).double().mean(0)
    if not head.classifies:
        return found
    top = torch.stack([own_top, guess.amax(0)])[:, None]
    # the first of the largest, as argmax has it: its own steps are slower than these, which move single bytes
    last_to_first = torch.arange(head.n_outputs, 0, -1, dtype=torch.uint8, device=both.device)
    own, guessed = (both == top).view(torch.uint8).mul_(last_to_first[:, None]).amax(1)
    found["top1"] = (own == guessed).double()
    p, q = torch.softmax(both.div_(2) if head.kind == "binary" else both, 1)
    found["emd"] = p.sub_(q).abs_().sum(0).div_(2)
    return found


def _joined(surrogate: Surrogate, head: Head, positions: bool) -> LinearSurrogate | None:
    """Head and surrogate as one product where both are linear and narrow: embeddings are then read once."""
    if positions or not head.exact or head.n_outputs > _FEW or not isinstance(surrogate, LinearSurrogate):
        return None
    return LinearSurrogate(
        torch.cat([head.weight, surrogate.weight]), torch.cat([head.bias, surrogate.constant])
    )


def _of_head(
    y: Tensor, guess: Tensor, head: Head, labels: Tensor | None, companions: bool
) -> dict[str, Tensor]:
    away = y - guess
    found = {"squared": vector_norm(away, 2, -1).square() / y.shape[-1]}
    found["mae"] = row_sums(away.abs_()) / y.shape[-1]
    if head.kind == "multilabel":
        found["attributes"] = ((y > 0) == (guess > 0)).double().mean(-1)
    if not head.classifies:
        return found
    (top, own), (guessed_top, guessed) = y.max(-1), guess.max(-1)
    found["emd"] = moved_mass(distribution(head, y, top), distribution(head, guess, guessed_top))
    found["top1"] = (own == guessed).double()
    if not companions:
        return found
    found["rank"] = spearman(y, guess)
    if labels is not None:
        found["norm_l1"] = normalised_error(y, guess, labels)
        found["model_right"] = (own == labels).double()
        found["surrogate_right"] = (guessed == labels).double()
    return found
