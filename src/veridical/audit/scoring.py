"""Every explainer and control under every metric, with work shared between them."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace

from veridical.api import evaluate
from veridical.audit.panel import Panel, Seat
from veridical.audit.sentences import joined
from veridical.errors import VeridicalWarning
from veridical.masking.shared_work import sharing
from veridical.metrics import ExplainerMetric
from veridical.progress import track
from veridical.random.keyed import Key
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.scores import Scores
from veridical.values.task import Task


def score_everyone(
    task: Task, panel: Panel, seats: Mapping[str, Seat], seed: int, progress: bool | None
) -> Evaluation:
    """All cells; a metric that can judges everyone in the same noisy worlds, asked once for all."""
    everyone = {**panel.explainers, **panel.controls}
    together = {
        label: seat.metric
        for label, seat in seats.items()
        if isinstance(seat.metric, ExplainerMetric)
        and type(seat.metric).score_all is not ExplainerMetric.score_all
    }
    scores: dict[tuple[str, str], Scores] = {}
    failures: list[Failure] = []
    with sharing(task):
        for label, metric in track(list(together.items()), "scoring in noisy worlds", progress):
            for who, found in metric.score_all(task, everyone, Key(seed)).items():
                if isinstance(found, Exception):
                    told = "".join(traceback.format_exception(found))
                    failures.append(Failure(who, label, str(found), told))
                    said = f"metric '{label}' on '{who}' failed: {found}"
                    warnings.warn(said, VeridicalWarning, stacklevel=3)
                else:
                    scores[who, label] = found
        rest = {label: seat.metric for label, seat in seats.items() if label not in together}
        table = evaluate(task, everyone, rest, seed=seed, progress=progress)
    scores |= table.scores
    lost = {failure.explainer for failure in table.failures if failure.metric is None}
    in_order = {
        (who, label): scores[who, label]
        for who in everyone
        if who not in lost
        for label in seats
        if (who, label) in scores
    }
    return replace(table, scores=in_order, failures=[*failures, *table.failures])


def unscored(evaluation: Evaluation, seats: Mapping[str, Seat], panel: Panel) -> Iterator[str]:
    """What the verdict does with cells that have no score."""
    if evaluation.interrupted:
        yield "The scoring was interrupted: explainers count as last under metrics that did not reach them."
    lost: dict[str, list[str]] = {}
    for failure in evaluation.failures:
        if failure.explainer in panel.controls and failure.metric is None:
            yield f"The control {failure.explainer} could not be computed, so nobody is compared with it."
        elif failure.metric is not None and seats[failure.metric].decides:
            lost.setdefault(failure.metric, []).append(failure.explainer)
    for metric, names in lost.items():
        explainers = [who for who in names if who in panel.explainers]
        controls = [who for who in names if who in panel.controls]
        if explainers:
            yield f"{metric} failed on {joined(explainers)}, which counts as last place there."
        if controls:
            yield f"{metric} failed on {joined(controls)} and is left out where others are compared with it."
