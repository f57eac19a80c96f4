"""Faithfulness against the number of concepts (figure 2), and where more concepts stop paying."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from veridical.concepts.embeddings import Embeddings, Head, Kind
from veridical.concepts.materials import Entry, entries, materials_of
from veridical.concepts.measures import Judgement, judge
from veridical.concepts.methods.base import ConceptMethod
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


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
    train: Embeddings | Task,
    test: Embeddings | None = None,
    head: Head | None = None,
    counts: Sequence[int] = (1, 2, 3, 5, 8, 12),
    seed: int | Key = 0,
    materials: Mapping[Kind, Embeddings] | None = None,
) -> Parsimony:
    """Fit with each number of concepts and judge on the test embeddings.

    A task in place of the embeddings brings both, and whatever the method is fitted on. Ready `Concepts` and
    loaded dictionaries are not fitted again: theirs is one point, at the number of concepts they show.
    """
    if not counts or list(counts) != sorted(set(counts)):
        raise InputError(f"counts must rise, got {list(counts)}")
    ((label, item),) = entries([method]).items()
    rows, test, head = materials_of(train, test, head, materials)
    if isinstance(item, ConceptMethod):
        fits = [rows.concepts(replace(item, n_concepts=k), head, seed) for k in counts]
    else:
        fits = [rows.concepts(item, head, seed)]
        counts = [round(fits[0].charged)]
    found = [judge(concepts, test, head, companions=False) for concepts in fits]
    return Parsimony(label, tuple(counts), tuple(found))
