"""How far a surrogate's outputs are from the model's: one number a sample, streamed over embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.linalg import vector_norm

from veridical.functional import spearman
from veridical.surf.embeddings import Embeddings
from veridical.surf.head import Head

_ELEMENTS = 2**19
"""Numbers of the widest tensor of a chunk: 4 MiB in float64, which stays in a processor's cache."""

Surrogate = Callable[[Tensor], Tensor]


def chunks(count: int, width: int) -> Iterator[slice]:
    """Slices of rows whose widest tensor, `width` numbers a row, stays within a fixed size."""
    rows = max(1, _ELEMENTS // max(1, width))
    for at in range(0, count, rows):
        yield slice(at, min(count, at + rows))


def absolute_error(y: Tensor, guess: Tensor) -> Tensor:
    """Mean over outputs of `|y - y_hat|`: SURF_MAE (eq. 11) of each sample."""
    return vector_norm(y - guess, 1, -1) / y.shape[-1]


def moved_mass(p: Tensor, guess: Tensor) -> Tensor:
    """`sum_i |p_i - p_hat_i| / 2`, the total variation: SURF_EMD (eq. 12) of each sample."""
    return vector_norm(p - guess, 1, -1) / 2


def normalised_error(y: Tensor, guess: Tensor, labels: Tensor) -> Tensor:
    """`|y_t - y_hat_t| / |y_t|` on the true class (eq. 5); NaN where the model's logit is 0."""
    truth = y.gather(1, labels[:, None]).squeeze(1)
    error = (truth - guess.gather(1, labels[:, None]).squeeze(1)).abs()
    return torch.where(truth == 0, torch.nan, error / truth.abs())


def settled(guess: Tensor, y: Tensor) -> Tensor:
    """The guess with the model's own value where the two differ by rounding only (1e-12 of the row's scale).

    A perfect explanation then scores exactly 0, and no last bit decides a rank.
    """
    rounding = 1e-12 * vector_norm(y, torch.inf, -1, keepdim=True)
    return torch.where((guess - y).abs_() <= rounding, y, guess)


def compare(
    surrogate: Surrogate,
    embeddings: Embeddings,
    head: Head,
    width: int = 1,
    companions: bool = True,
    positions: bool = False,
) -> dict[str, Tensor]:
    """All measures that apply to the head, one value a sample each (N,).

    The model's outputs are `F h + b` in float64 where the head is exact, so that a perfect explanation
    scores 0 and not the rounding of the model; otherwise they are the model's own.
    """
    kept: dict[str, list[Tensor]] = {}
    each = embeddings.values.shape[1] if positions else 1
    widest = max(embeddings.values[0].numel(), head.n_outputs, width * each)
    for piece in chunks(len(embeddings), widest):
        part = embeddings.take(piece)
        h = (part.values if positions and part.spatial else part.pooled).double()
        y = head.outputs(h) if head.exact else part.outputs.double()
        guess = settled(surrogate(h), y)
        found = _of_head(y, guess, head, part.labels, companions)
        if not head.exact:
            straight = head.outputs(h)
            found |= {
                "linearisation": absolute_error(y, straight),
                "explanation": absolute_error(straight, guess),
            }
        for name, values in found.items():
            kept.setdefault(name, []).append(values)
    return {name: torch.cat(values) for name, values in kept.items()}


def _of_head(
    y: Tensor, guess: Tensor, head: Head, labels: Tensor | None, companions: bool
) -> dict[str, Tensor]:
    found = {"mae": absolute_error(y, guess), "squared": vector_norm(y - guess, 2, -1).square() / y.shape[-1]}
    if head.kind == "multilabel":
        found["attributes"] = ((y > 0) == (guess > 0)).double().mean(-1)
    if not head.classifies:
        return found
    found["emd"] = moved_mass(head.probabilities(y), head.probabilities(guess))
    found["top1"] = (y.argmax(-1) == guess.argmax(-1)).double()
    if not companions:
        return found
    found["rank"] = spearman(y, guess)
    if labels is not None:
        found["norm_l1"] = normalised_error(y, guess, labels)
        found["model_right"] = (y.argmax(-1) == labels).double()
        found["surrogate_right"] = (guess.argmax(-1) == labels).double()
    return found
