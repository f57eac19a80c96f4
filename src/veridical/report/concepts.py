"""A comparison of concept methods as plain data: what SURF found, and what the concepts look like."""

from __future__ import annotations

from typing import Any

from veridical.concepts import Comparison, Concepts, Embeddings, split
from veridical.concepts.comparison import COLUMNS
from veridical.concepts.measures import HIGHER, LABELS, Judgement, shown
from veridical.concepts.plots import patch, strongest
from veridical.concepts.verdict import Place
from veridical.errors import VeridicalError
from veridical.report.numbers import plain
from veridical.report.png import image_address
from veridical.values.task import Task

OUTPUTS, MOST, PATCHES = 3, 4, 5
"""Outputs, concepts of an output and patches of a concept that a page shows."""


def concepts(task: Task, comparison: Comparison) -> dict[str, Any]:
    """The table of methods, and for images the patches that activate each method's concepts most."""
    columns = [c for c in COLUMNS if any(c in j.summary for j in comparison.judgements.values())]

    def cells(found: Judgement) -> list[dict[str, Any]]:
        values = [(c, float(found.summary.get(c, float("nan")))) for c in columns]
        return [{"value": plain(value), "shown": shown(c, value)} for c, value in values]

    return {
        "columns": [{"label": LABELS.get(c, c.capitalize()), "higher": c in HIGHER} for c in columns],
        "rows": [
            {
                "method": name,
                "cells": cells(found),
                "error_of_concepts": plain(float(comparison.splits[name].concepts)),
                "error_of_importances": plain(float(comparison.splits[name].importances)),
                "notes": [*found.notes, *(f"output {o}: {why}" for o, why in found.flags.items())],
            }
            for name, found in comparison.judgements.items()
        ],
        "controls": [{"method": name, "cells": cells(found)} for name, found in comparison.controls.items()],
        "sentences": [] if comparison.verdict is None else list(comparison.verdict.sentences),
        "places": [] if comparison.verdict is None else [_place(p) for p in comparison.verdict.places],
        "refused": dict(comparison.refused),
        "grids": _grids(task, comparison),
    }


def _place(place: Place) -> dict[str, Any]:
    """One method in the verdict: its error, and by how much each control's is larger."""
    return {
        "method": place.method,
        "error": str(place.error),
        "behind": "" if place.gap_to_best is None else str(place.gap_to_best),
        "above": {name: str(found) for name, found in place.control_gaps.items()},
        "trusted": place.trusted,
        "stability": None if place.stability is None else plain(place.stability.concepts),
        "stability_of_importances": None if place.stability is None else plain(place.stability.importances),
    }


def _grids(task: Task, comparison: Comparison) -> list[dict[str, Any]]:
    if task.inputs.dim() != 4:
        return []
    try:
        parts = split(task)
        seen: Embeddings = task.uncounted(lambda: parts.test(spatial=parts.map_layer is not None))
    except VeridicalError:
        return []
    common = task.predictions.bincount(minlength=parts.head.n_outputs).argsort(descending=True, stable=True)
    outputs = [int(o) for o in common[:OUTPUTS] if int(o) < parts.head.n_outputs]
    return [
        {"method": name, "output": output, "concepts": _grid(task, found, seen, output)}
        for name, found in comparison.concepts.items()
        for output in outputs
        if output not in found.flags
    ]


def _grid(task: Task, found: Concepts, seen: Embeddings, output: int) -> list[dict[str, Any]]:
    """The most important concepts of an output by magnitude, each with its patches."""
    weights = found.importances[output]
    present = found.present[0 if found.shared else output]
    order = weights.abs().masked_fill(~present, -1).argsort(descending=True, stable=True)
    samples, where = strongest(found, seen, output, min(PATCHES, len(seen)))
    positions = seen.values.shape[1] if seen.spatial else 1
    return [
        {
            "concept": k,
            "importance": plain(float(weights[k])),
            "patches": [
                {
                    "id": int(task.ids[int(sample)]),
                    "picture": image_address(patch(task.inputs[int(sample)], int(place), positions)),
                }
                for sample, place in zip(samples[k].tolist(), where[k].tolist(), strict=True)
            ],
        }
        for k in order[: min(MOST, int(present.sum()))].tolist()
    ]
