"""What concepts can reach: the best K shared directions, whose fault an error is, and how many are enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from veridical.concepts.concepts import Concepts, Linear
from veridical.concepts.embeddings import Embeddings, Head, Kind
from veridical.concepts.materials import Entry, entries, materials_of
from veridical.concepts.measures import Judgement, chunks, judge, least_squares_importances
from veridical.concepts.methods.base import ConceptMethod
from veridical.concepts.splitting import Split
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def rank_optimum(embeddings: Embeddings, head: Head, n_concepts: int) -> Concepts:
    """The K shared directions with the least RMSE that a linear surrogate can have on these embeddings.

    With `mu = E[h]`, `S = Cov(h)` and `F S^(1/2) = U s W^T` the surrogate is
    `U_K U_K^T F (h - mu) + F mu + b`, and its squared error `sum_{j > K} s_j^2 / C` (Eckart and Young): no
    method of K shared directions, with an offset or without, does better on them. At K = rank(F) it is the
    head itself.

    Parameters
    ----------
    embeddings, head
        What is to be rebuilt.
    n_concepts
        K, at most the smaller side of F.

    Returns
    -------
    Concepts
        The optimum as an explanation.
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
    """Split SURF into what is the concepts' fault and what the importances'.

    Parameters
    ----------
    concepts
        The explanation.
    train
        Embeddings on which the best importances are fitted, by least squares.
    test, head
        What both are judged on.

    Returns
    -------
    ErrorSplit
        The explanation as it is, and with fitted importances.
    """
    best = concepts.with_importances(least_squares_importances(concepts, train, head))
    return ErrorSplit(
        judge(concepts, test, head, companions=False), judge(best, test, head, companions=False)
    )


def plateau(counts: Sequence[int], errors: Sequence[float], tolerance: float = 0.05) -> int | None:
    """The fewest concepts whose error is within a share of the whole improvement of the best one.

    `error(K) <= best + tolerance (first - best)`. A curve that never improves has its plateau at the start;
    one that still falls at its end has none (None): more concepts would tell. Nor has a single point.

    >>> plateau([1, 2, 4, 8], [10.0, 4.0, 1.2, 1.0])
    4
    """
    if len(counts) != len(errors) or not counts:
        raise InputError(f"one error per count is needed, got {len(errors)} for {len(counts)}")
    if not all(math.isfinite(error) for error in errors):
        raise InputError(f"errors of a curve are finite numbers, got {list(errors)}")
    best = min(errors)
    enough = best + tolerance * max(0.0, errors[0] - best)
    found = next(k for k, error in zip(counts, errors, strict=True) if error <= enough + 1e-12)
    return None if found == counts[-1] else found


@dataclass(frozen=True, eq=False, repr=False)
class Parsimony:
    """One judgement per number of concepts."""

    method: str
    counts: tuple[int, ...]
    judgements: tuple[Judgement, ...]

    def errors(self, name: str = "mae") -> list[float]:
        """The curve of one measure."""
        return [float(getattr(judgement, name)) for judgement in self.judgements]

    def suggested(self, name: str = "mae") -> int | None:
        """The number of concepts at the plateau; None where the curve has none."""
        return plateau(self.counts, self.errors(name))

    def to_frame(self) -> pd.DataFrame:
        """One row per number of concepts."""
        import pandas as pd

        rows = [
            {"method": self.method, "n_concepts": k, **judgement.summary}
            for k, judgement in zip(self.counts, self.judgements, strict=True)
        ]
        return pd.DataFrame(rows)

    def plot(self, name: str = "mae", ax: Axes | None = None, color: str | None = None) -> Axes:
        """The curve, with the plateau marked."""
        from veridical.concepts.plots import plot_parsimony

        return plot_parsimony(self, name, ax, color)

    def __repr__(self) -> str:
        curve = ", ".join(f"{k}: {e:.4g}" for k, e in zip(self.counts, self.errors(), strict=True))
        found = self.suggested()
        end = "no plateau up to there" if found is None else f"plateau at {found}"
        end = "one point, so no plateau" if len(self.counts) == 1 else end
        return f"Parsimony of {self.method}, SURF_MAE by concepts: {curve}; {end}"


def parsimony(
    method: Entry | str,
    train: Task | Split | Embeddings,
    test: Embeddings | None = None,
    head: Head | None = None,
    counts: Sequence[int] = (1, 2, 3, 5, 8, 12),
    seed: int | Key = 0,
    materials: Mapping[Kind, Embeddings] | None = None,
) -> Parsimony:
    """Fit with each number of concepts and judge on the test embeddings.

    Ready `Concepts` and loaded dictionaries are not fitted again: theirs is one point, at the number of
    concepts they show.

    Parameters
    ----------
    method
        A concept method or its name.
    train, test, head
        Train embeddings, test embeddings and their head; or a task, or its `split`, in place of all three.
    counts
        Numbers of concepts, rising.
    seed
        Keys the draws of the method.
    materials
        Positions, crops or segments for methods that are fitted on those, by kind.

    Returns
    -------
    Parsimony
        A judgement per number; `suggested()` is where more concepts stop paying.
    """
    if not counts or list(counts) != sorted(set(counts)):
        raise InputError(f"counts must rise, got {list(counts)}")
    ((label, item),) = entries([method]).items()
    rows, _, test, head = materials_of(train, test, head, materials)
    if isinstance(item, ConceptMethod):
        fits = [rows.concepts(replace(item, n_concepts=k), head, seed) for k in counts]
    else:
        fits = [rows.concepts(item, head, seed)]
        counts = [round(fits[0].charged)]
    found = [judge(concepts, test, head, companions=False) for concepts in fits]
    return Parsimony(label, tuple(counts), tuple(found))
