"""The page of an evaluation: the table, the curves, a gallery, the settings."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.gef.perturbation_log import incomplete
from veridical.report import cells
from veridical.report.citations import bibtex
from veridical.report.gallery import gallery
from veridical.report.numbers import plain
from veridical.report.rendering import opening, write
from veridical.values.evaluation import Evaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GALLERY_SAMPLES = 6


def write_evaluation(evaluation: Evaluation, path: str | Path, format: str = "html") -> Path:
    """Write the page; it loads nothing from anywhere."""
    return write(contents(evaluation), path, format)


def contents(evaluation: Evaluation) -> dict[str, Any]:
    """Everything the page shows, as plain data."""
    metrics = cells.metric_facts(evaluation)
    made = {
        **opening("evaluation", evaluation.task.name),
        "task": repr(evaluation.task),
        "seed": evaluation.seed,
        "metrics": metrics,
        "table": cells.table(evaluation),
        "curves": cells.curves(evaluation),
        "gallery": gallery(evaluation.task, evaluation.explanations, {}, samples=GALLERY_SAMPLES),
        "flags": cells.flagged(evaluation),
        "receipts": incomplete(evaluation.scores.values()),
        "failures": cells.failed(evaluation.failures),
        "interrupted": evaluation.interrupted,
        "settings": cells.settings(evaluation),
        "bibtex": bibtex(cells.papers(evaluation)),
    }
    return plain(made)


def picture(figure: Figure) -> str:
    """A figure as a data address that needs no file beside the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
