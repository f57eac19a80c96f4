"""One self-contained HTML page from an evaluation: the table, the curves, a gallery, the settings."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical._version import __version__
from veridical.evaluation import Evaluation
from veridical.plots import COLOURS, plot_evaluation, plot_explanation, plot_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).parent / "templates"
GALLERY_SAMPLES = 6


def write_evaluation(evaluation: Evaluation, path: str | Path) -> Path:
    """Write the page; it loads nothing from anywhere."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    page = environment.get_template("evaluation.html").render(**contents(evaluation))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def contents(evaluation: Evaluation) -> dict[str, Any]:
    """Everything the template shows, as plain data and pictures."""
    first = next(iter(evaluation.scores.values()), None)
    return {
        "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "task": repr(evaluation.task),
        "name": evaluation.task.name,
        "table": _table(evaluation),
        "metrics": _metrics(evaluation),
        "gallery": _gallery(evaluation),
        "failures": evaluation.failures,
        "interrupted": evaluation.interrupted,
        "settings": json.dumps(dict(first.provenance) if first else {}, indent=2, default=str),
        "cells": [
            {"explainer": who, "metric": what, "provenance": json.dumps(dict(s.provenance), default=str)}
            for (who, what), s in evaluation.scores.items()
        ],
    }


def _table(evaluation: Evaluation) -> list[dict[str, Any]]:
    rows = []
    for who in evaluation.explainers:
        cells: list[dict[str, Any] | None] = []
        for what in evaluation.metrics:
            scores = evaluation.scores.get((who, what))
            if scores is None:
                cells.append(None)
                continue
            low, high = scores.ci()
            cells.append(
                {
                    "mean": scores.mean(skip_nan=True),
                    "low": low,
                    "high": high,
                    "best": _is_best(evaluation, who, what),
                    "flags": "; ".join(f"{n} x {reason}" for reason, n in scores.flagged.items()),
                    "cost": str(scores.cost),
                }
            )
        rows.append({"explainer": who, "cells": cells})
    return rows


def _is_best(evaluation: Evaluation, who: str, what: str) -> bool:
    means = {
        other: float(s.utility.nanmean())
        for (other, metric), s in evaluation.scores.items()
        if metric == what
    }
    return means[who] >= max(means.values())


def _metrics(evaluation: Evaluation) -> list[dict[str, Any]]:
    from matplotlib.figure import Figure

    out = []
    for what in evaluation.metrics:
        scores = {
            who: evaluation.scores[who, what]
            for who in evaluation.explainers
            if (who, what) in evaluation.scores
        }
        any_score = next(iter(scores.values()))
        curved = any_score.curve is not None
        figure = Figure(figsize=(10 if curved else 5, 3.2), layout="constrained")
        plots = figure.subplots(1, 2 if curved else 1, squeeze=False)[0]
        plot_evaluation(evaluation, what, plots[0])
        if curved:
            for i, (who, score) in enumerate(scores.items()):
                plot_scores(score, plots[1], COLOURS[i % len(COLOURS)], who)
            plots[1].legend(fontsize=7, frameon=False)
        out.append({"name": what, "direction": any_score.direction.value, "picture": picture(figure)})
    return out


def _gallery(evaluation: Evaluation) -> list[dict[str, Any]]:
    """One row a sample: the input and each explainer's map of it."""
    from matplotlib.figure import Figure

    explanations, task = evaluation.explanations, evaluation.task
    if not explanations:
        return []
    shown = min(GALLERY_SAMPLES, len(task))
    is_image = task.inputs.dim() == 4
    out = []
    for sample in range(shown):
        columns = len(explanations) + (1 if is_image else 0)
        figure = Figure(
            figsize=((1.7 if is_image else 3.4) * columns, 1.9 if is_image else 2.6), layout="constrained"
        )
        plots = figure.subplots(1, columns, squeeze=False)[0]
        at = 0
        if is_image:
            from veridical.plots import as_image

            plots[0].imshow(as_image(task.inputs[sample]).numpy(), cmap="gray_r")
            plots[0].set_axis_off()
            plots[0].set_title("input", fontsize=9)
            at = 1
        for ax, (who, explanation) in zip(plots[at:], explanations.items(), strict=True):
            plot_explanation(explanation, sample, ax)
            ax.set_title(who, fontsize=8)
        out.append(
            {
                "id": int(task.ids[sample]),
                "target": int(task.targets[sample]),
                "label": None if task.labels is None else task.labels[sample].tolist(),
                "picture": picture(figure),
            }
        )
    return out


def picture(figure: Figure) -> str:
    """A figure as a data address that needs no file beside the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
