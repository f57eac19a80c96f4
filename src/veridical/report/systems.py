"""What each system found as plain data: GEF's paths, F-Fidelity's robustness, QGE's standings, concepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from veridical.concepts import Comparison, Concepts, Embeddings, split
from veridical.concepts.comparison import COLUMNS, Place
from veridical.concepts.measures import HIGHER, LABELS, Judgement, shown
from veridical.concepts.plots import patch, strongest
from veridical.errors import VeridicalError
from veridical.fidelity import RobustnessTable
from veridical.qge import Standing
from veridical.report.evaluation import PLAIN
from veridical.report.gallery import image_address
from veridical.report.rendering import plain
from veridical.values.evaluation import Evaluation
from veridical.values.scores import Scores
from veridical.values.task import Task


def is_path(evaluation: Evaluation, metric: str) -> bool:
    """Whether a metric follows model and explanation along a path of noise, as GEF does."""
    return any(
        what == metric and "model_distortion" in s.details for (_, what), s in evaluation.scores.items()
    )


def paths(evaluation: Evaluation, statuses: Mapping[str, str]) -> list[dict[str, Any]]:
    """For each metric of GEF: its path, and how far model and explanations moved along it."""
    out = []
    for what in evaluation.metrics:
        if not is_path(evaluation, what):
            continue
        held = {who: evaluation.scores[who, what] for who in statuses if (who, what) in evaluation.scores}
        path = next(iter(held.values())).provenance.get("path")
        lines = [{"label": who, "status": statuses.get(who, PLAIN), **_moved(s)} for who, s in held.items()]
        out.append({"metric": what, "path": path, "lines": lines})
    return out


def _moved(scores: Scores) -> dict[str, Any]:
    def mean(name: str) -> Tensor:
        return scores.details.get(name, scores.values).double()

    return {
        "x": mean("model_distortion").nanmean(1).nanmean(0),
        "y": mean("explanation_distortion").nanmean(1).nanmean(0),
        "score": float(mean("q").nanmean()),
        "ceiling": float(mean("ceiling").nanmean()),
        "partial": float(mean("partial").nanmean()),
        "iso": scores.provenance.get("iso_sigma"),
    }


def robustness(found: RobustnessTable | None) -> dict[str, Any] | None:
    """Right and unchanged answers of each model by masked share, and what follows from them."""
    if found is None:
        return None
    return {
        "shares": list(found.shares),
        "rows": found.rows,
        "models": [
            {"model": name, "accuracy": list(found.accuracy[name]), "agreement": list(found.agreement[name])}
            for name in found.accuracy
        ],
        "advice": found.advice,
    }


def standing(found: Standing) -> dict[str, Any]:
    """For each sample: the share of random rankings that the explanation beats."""
    columns = zip(
        found.ids.tolist(),
        found.percentile.tolist(),
        found.low.tolist(),
        found.high.tolist(),
        found.method,
        strict=True,
    )
    names = ("id", "percentile", "low", "high", "method")
    return {
        "explainer": found.explainer,
        "metric": found.metric,
        "said": repr(found),
        "samples": [dict(zip(names, row, strict=True)) for row in columns],
    }


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
    return [
        {
            "concept": k,
            "importance": plain(float(weights[k])),
            "patches": [
                {
                    "id": int(task.ids[int(sample)]),
                    "picture": image_address(patch(task.inputs[int(sample)], int(place), seen.grid)),
                }
                for sample, place in zip(samples[k].tolist(), where[k].tolist(), strict=True)
            ],
        }
        for k in order[: min(MOST, int(present.sum()))].tolist()
    ]
