"""Beyond the paper: the best any shared directions could do, and whose fault an error is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from veridical.concepts.concepts import Concepts, Linear
from veridical.concepts.embeddings import Embeddings, Head
from veridical.concepts.measures import Judgement, chunks, judge, least_squares_importances
from veridical.errors import InputError


def rank_optimum(embeddings: Embeddings, head: Head, n_concepts: int) -> Concepts:
    """The K shared directions with the least RMSE that a linear surrogate can have on these embeddings.

    With `mu = E[h]`, `S = Cov(h)` and `F S^(1/2) = U s W^T` the surrogate is
    `U_K U_K^T F (h - mu) + F mu + b`, and its squared error `sum_{j > K} s_j^2 / C` (Eckart and Young): no
    method of K shared directions, with an offset or without, does better on them. At K = rank(F) it is the
    head itself.
    """
    if not 1 <= n_concepts <= min(head.weight.shape):
        raise InputError(f"n_concepts is between 1 and {min(head.weight.shape)} here, got {n_concepts}")
    h = embeddings.pooled
    centre = torch.stack([part.double().sum(0) for part in h.split(4096)]).sum(0) / len(h)
    spread = head.weight.new_zeros(head.dimension, head.dimension)
    for piece in chunks(len(h), head.dimension):
        away = h[piece].double() - centre
        spread += away.T @ away
    # F S F^T has the left singular vectors of F S^(1/2): no root of S is needed
    _, left = torch.linalg.eigh(head.weight @ spread @ head.weight.T / len(h))
    left = left[:, -n_concepts:].flip(1)
    rows = left.T @ head.weight
    length = rows.norm(dim=-1).clamp(min=1e-300)
    vectors = (rows / length[:, None])[None]
    offset = head.weight @ centre
    return Concepts("optimum", vectors, left * length, Linear(vectors, centre[None]), offset, centre[None])


@dataclass(frozen=True, eq=False, repr=False)
class ErrorSplit:
    """An explanation as it is, and with the best importances its concepts allow.

    What is left with those importances is the concepts' fault; what they gain is the importances'. All are
    errors against the model's own outputs: where the head is expanded, `linearisation` is the part of them
    that any linear explanation has.
    """

    own: Judgement
    fitted: Judgement

    @property
    def concepts(self) -> float:
        """The error (MAE) that no importances would remove."""
        return self.fitted.mae

    @property
    def linearisation(self) -> float:
        """The error (MAE) of the expanded head itself; 0 where the head is linear."""
        return self.own.summary.get("linearisation", 0.0)

    @property
    def importances(self) -> float:
        """The error (MAE) that better importances would remove; below 0 where the fit did not carry over."""
        return self.own.mae - self.fitted.mae

    def __repr__(self) -> str:
        return (
            f"SURF_MAE of {self.own.method} {self.own.mae:.4g} = concepts {self.concepts:.4g} + importances "
            f"{self.importances:.4g}; RMSE {self.own.rmse:.4g}, fitted importances {self.fitted.rmse:.4g}"
        )


def error_split(concepts: Concepts, train: Embeddings, test: Embeddings, head: Head) -> ErrorSplit:
    """Split SURF into concepts and importances: least-squares importances come from the train split."""
    best = concepts.with_importances(least_squares_importances(concepts, train, head))
    return ErrorSplit(
        judge(concepts, test, head, companions=False), judge(best, test, head, companions=False)
    )
