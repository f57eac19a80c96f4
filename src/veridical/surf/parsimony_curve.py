"""Faithfulness against the number of concepts (figure 2), and where more concepts stop paying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from veridical.errors import InputError
from veridical.random.keyed import Key
from veridical.surf.embeddings import Embeddings
from veridical.surf.head import Head
from veridical.surf.judgement import Judgement
from veridical.surf.measures import judge
from veridical.surf.methods.base import ConceptMethod

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def plateau(counts: Sequence[int], errors: Sequence[float], tolerance: float = 0.05) -> int:
    """The fewest concepts whose error is within a share of the whole improvement of the best one.

    `error(K) <= best + tolerance (first - best)`. A curve that never improves has its plateau at the start.

    >>> plateau([1, 2, 4, 8], [10.0, 4.0, 1.2, 1.0])
    4
    """
    if len(counts) != len(errors) or not counts:
        raise InputError(f"one error a count is needed, got {len(errors)} for {len(counts)}")
    best = min(errors)
    enough = best + tolerance * max(0.0, errors[0] - best)
    return next(k for k, error in zip(counts, errors, strict=True) if error <= enough + 1e-12)


@dataclass(frozen=True, eq=False, repr=False)
class Parsimony:
    """One judgement a number of concepts."""

    method: str
    counts: tuple[int, ...]
    judgements: tuple[Judgement, ...]

    def errors(self, name: str = "mae") -> list[float]:
        """The curve of one measure."""
        return [float(getattr(judgement, name)) for judgement in self.judgements]

    def suggested(self, name: str = "mae") -> int:
        """The number of concepts at the plateau."""
        return plateau(self.counts, self.errors(name))

    def to_frame(self) -> pd.DataFrame:
        """One row a number of concepts."""
        import pandas as pd

        rows = [
            {"method": self.method, "n_concepts": k, **judgement.summary}
            for k, judgement in zip(self.counts, self.judgements, strict=True)
        ]
        return pd.DataFrame(rows)

    def plot(self, name: str = "mae", ax: Axes | None = None, color: str | None = None) -> Axes:
        """The curve, with the plateau marked."""
        from veridical.surf.plots import plot_parsimony

        return plot_parsimony(self, name, ax, color)

    def __repr__(self) -> str:
        curve = ", ".join(f"{k}: {e:.4g}" for k, e in zip(self.counts, self.errors(), strict=True))
        return f"Parsimony of {self.method}, SURF_MAE by concepts: {curve}; plateau at {self.suggested()}"


def parsimony(
    method: ConceptMethod,
    train: Embeddings,
    test: Embeddings,
    head: Head,
    counts: Sequence[int] = (1, 2, 3, 5, 8, 12),
    seed: int | Key = 0,
) -> Parsimony:
    """Fit with each number of concepts and judge on the test embeddings."""
    if not counts or list(counts) != sorted(set(counts)):
        raise InputError(f"counts must rise, got {list(counts)}")
    found = [
        judge(replace(method, n_concepts=k).fit(train, head, seed), test, head, companions=False)
        for k in counts
    ]
    return Parsimony(method.name, tuple(counts), tuple(found))
