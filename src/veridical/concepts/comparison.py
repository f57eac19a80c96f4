"""Several concept methods on one task (table 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.concepts.embeddings import Embeddings, Head, Kind
from veridical.concepts.materials import entries, materials_of
from veridical.concepts.measures import LABELS, Judgement, judge, shown, text_table
from veridical.concepts.methods.base import ConceptMethod
from veridical.concepts.sanity_check import constant, perfect, random_concepts, random_importances
from veridical.concepts.splitting import Split
from veridical.concepts.upper_bound import ErrorSplit, error_split, rank_optimum
from veridical.concepts.verdict import ConceptVerdict, Stability, decide, stability
from veridical.core.key import Key, as_key
from veridical.errors import InputError, NotApplicableError
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("mae", "emd", "rmse", "top1", "rank", "attributes", "concepts")


CONTROLS = ("Rand-Imp", "Full-Rand", "Constant")
"""What a method must beat: the head's directions with random importances, all random, and the mean output."""
_DRAWS = 10
"""Draws of the random controls."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Concepts and their judgement for every method; `refused` says why a method does not apply.

    `controls` are judged as methods are: Perfect (which must be exact), Rand-Imp, Full-Rand and Constant, of
    which the first draw is shown. `optimum` is the least RMSE that as many shared directions as were asked
    for can have on the judged samples. `verdict` compares all of it, with paired intervals.
    """

    judgements: dict[str, Judgement]
    concepts: dict[str, Concepts]
    splits: dict[str, ErrorSplit]
    refused: dict[str, str]
    controls: dict[str, Judgement] = field(default_factory=dict)
    optimum: Judgement | None = None
    stability: dict[str, Stability | None] = field(default_factory=dict)
    verdict: ConceptVerdict | None = None

    def to_frame(self) -> pd.DataFrame:
        """One row per method."""
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

        def row(name: str, found: Judgement, *rest: str) -> list[str]:
            return [name, *(shown(c, found.summary.get(c, float("nan"))) for c in columns), *rest]

        rows = [
            row(
                name,
                found,
                f"{self.splits[name].concepts:.4g}",
                f"{self.splits[name].importances:.4g}",
            )
            for name, found in self.judgements.items()
        ]
        rows += [row(name, found, "", "") for name, found in self.controls.items()]
        if self.optimum is not None:
            rows.append(row(f"optimum of {self.optimum.concepts:.0f} shared", self.optimum, "", ""))
        head = ["Method", *(LABELS.get(c, c.capitalize()) for c in columns), "MAE: concepts", "importances"]
        notes = [f"{name}: {why}" for name, why in self.refused.items()]
        notes += [
            f"{name}: {note}"
            for name, j in self.judgements.items()
            for note in j.notes
            if "trivially" in note
        ]
        words = [] if self.verdict is None else [*self.verdict.sentences, ""]
        return "\n".join([*words, text_table(head, rows), *notes])


def compare(
    train: Task | Split | Embeddings,
    methods: Any,
    seed: int | Key = 0,
    seeds: int = 1,
    layer: str | None = None,
    *,
    test: Embeddings | None = None,
    head: Head | None = None,
    materials: Mapping[Kind, Embeddings] | None = None,
) -> Comparison:
    """Fit each method on train rows, judge it on others, and say which one to use.

    Parameters
    ----------
    train
        A task, or its `split`, which brings train rows, inputs to judge on and the head; or train embeddings.
    methods
        Concept methods, names of them, ready `Concepts` and loaded dictionaries, in a list or in a mapping
        from labels. One that does not apply is left out, with its reason.
    seed
        Keys the draws of methods and controls.
    seeds
        How often methods that draw are fitted: intervals cover the seeds, and `stability` says whether
        concepts stay the same.
    layer
        The linear layer at which a task's model is split; found by itself otherwise.
    test, head
        Embeddings to judge on and their head, where `train` are embeddings.
    materials
        Positions, crops or segments for methods that are fitted on those, by kind; a task makes them itself.

    Returns
    -------
    Comparison
        A judgement per method and control, the best possible one, and the verdict.

    Raises
    ------
    InputError
        No method is given, or embeddings come without test rows or head.
    """
    rows, own, test, head = materials_of(train, test, head, materials, layer)
    if seeds < 1:
        raise InputError(f"seeds is at least 1, got {seeds}")
    chosen = entries(methods)
    if not chosen:
        raise InputError("give at least one concept method, the name of one, or ready concepts")
    key = as_key(seed)
    keys = [key, *(key / "seed" / i for i in range(1, seeds))]
    judgements: dict[str, Judgement] = {}
    concepts: dict[str, Concepts] = {}
    splits: dict[str, ErrorSplit] = {}
    refused: dict[str, str] = {}
    stable: dict[str, Stability | None] = {}
    errors: dict[str, Tensor] = {}
    for label, item in chosen.items():
        often = keys if isinstance(item, ConceptMethod) and item.stochastic else keys[:1]
        try:
            fits = [replace(rows.concepts(item, head, each), method=label) for each in often]
        except NotApplicableError as error:
            refused[label] = str(error)
            continue
        found = [judge(fits[0], test, head)]
        found += [judge(each, test, head, companions=False) for each in fits[1:]]
        concepts[label], judgements[label] = fits[0], found[0]
        splits[label] = error_split(fits[0], own, test, head)
        stable[label] = stability(fits)
        errors[label] = torch.stack([each.values["mae"] for each in found])
    requested = max((i.n_concepts for i in chosen.values() if isinstance(i, ConceptMethod)), default=0)
    requested = requested or max((round(c.charged) for c in concepts.values()), default=1)
    controls, drawn = _controls(own, test, head, key)
    most = min(requested, *head.weight.shape)
    optimum = judge(rank_optimum(test, head, most), test, head)
    charged = {label: found.concepts for label, found in judgements.items()}
    verdict = decide(errors, drawn, charged, stable, requested, key / "verdict")
    return Comparison(judgements, concepts, splits, refused, controls, optimum, stable, verdict)


def _controls(
    train: Embeddings, test: Embeddings, head: Head, key: Key
) -> tuple[dict[str, Judgement], dict[str, Tensor]]:
    """The controls judged, and the errors (draws, N) of those that a method must beat."""
    if bool((head.norms == 0).any()):  # an output without weights has no direction to take
        flat = constant(train, head)
        return {flat.method: judge(flat, test, head)}, {
            flat.method: judge(flat, test, head).values["mae"][None]
        }
    drawn = {
        "Rand-Imp": [random_importances(head, key, draw) for draw in range(_DRAWS)],
        "Full-Rand": [random_concepts(head, key, draw) for draw in range(_DRAWS)],
        "Constant": [constant(train, head)],
    }
    shown_too = {"Perfect": judge(perfect(head), test, head)}
    shown_too |= {name: judge(found[0], test, head) for name, found in drawn.items()}
    errors = {
        name: torch.stack([judge(c, test, head, companions=False).values["mae"] for c in found])
        for name, found in drawn.items()
    }
    return shown_too, errors
