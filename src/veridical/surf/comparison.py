"""Several concept methods on one task (table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from veridical.errors import InputError, NotApplicableError
from veridical.random.keyed import Key
from veridical.surf.concepts import Concepts
from veridical.surf.embeddings import Embeddings
from veridical.surf.head import Head
from veridical.surf.judgement import LABELS, Judgement, shown
from veridical.surf.measures import judge
from veridical.surf.methods.base import ConceptMethod
from veridical.surf.splitting import split
from veridical.surf.table import text_table
from veridical.surf.upper_bound import ErrorSplit, error_split
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("mae", "emd", "rmse", "top1", "rank", "attributes", "concepts")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Concepts and their judgement for every method; `refused` says why a method does not apply."""

    judgements: dict[str, Judgement]
    concepts: dict[str, Concepts]
    splits: dict[str, ErrorSplit]
    refused: dict[str, str]

    def to_frame(self) -> pd.DataFrame:
        """One row a method."""
        import pandas as pd

        rows = [
            {
                "method": name,
                **found.summary,
                "error_of_concepts": self.splits[name].concepts,
                "error_of_importances": self.splits[name].importances,
            }
            for name, found in self.judgements.items()
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        columns = [c for c in COLUMNS if any(c in j.summary for j in self.judgements.values())]
        rows = [
            [
                name,
                *(shown(c, found.summary.get(c, float("nan"))) for c in columns),
                f"{self.splits[name].concepts:.4g}",
                f"{self.splits[name].importances:.4g}",
            ]
            for name, found in self.judgements.items()
        ]
        head = ["Method", *(LABELS.get(c, c.capitalize()) for c in columns), "MAE: concepts", "importances"]
        notes = [f"{name}: {why}" for name, why in self.refused.items()]
        notes += [
            f"{name}: {note}"
            for name, j in self.judgements.items()
            for note in j.notes
            if "trivially" in note
        ]
        return "\n".join([text_table(head, rows), *notes])


def compare(task: Task, methods: Sequence[ConceptMethod], seed: int | Key = 0) -> Comparison:
    """Fit each method on the task's train rows and judge it on its inputs."""
    parts = split(task)
    return compare_on(parts.train(), parts.test(), parts.head, methods, seed)


def compare_on(
    train: Embeddings, test: Embeddings, head: Head, methods: Sequence[ConceptMethod], seed: int | Key = 0
) -> Comparison:
    """The same for embeddings that are at hand; a method that does not apply is left out, with its reason."""
    names = [method.name for method in methods]
    if len(set(names)) != len(names):
        raise InputError(f"two methods have one name: {names}")
    judgements: dict[str, Judgement] = {}
    concepts: dict[str, Concepts] = {}
    splits: dict[str, ErrorSplit] = {}
    refused: dict[str, str] = {}
    for method in methods:
        try:
            found = method.fit(train, head, seed)
        except NotApplicableError as error:
            refused[method.name] = str(error)
            continue
        concepts[method.name] = found
        judgements[method.name] = judge(found, test, head)
        splits[method.name] = error_split(found, train, test, head)
    return Comparison(judgements, concepts, splits, refused)
