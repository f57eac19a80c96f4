"""What the metrics are worth on this very task, and the voice each gets for it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from veridical.audit.effort import Effort
from veridical.audit.panel import Panel, Seat, rows_of
from veridical.audit.sampling import some_of
from veridical.audit.verdict import CHANCE_CONSISTENCY, Judge
from veridical.errors import VeridicalError, VeridicalWarning
from veridical.gef import NoisePath
from veridical.meta import MetaEvaluation, meta_evaluate
from veridical.meta.consistency import FEWEST, meta_consistency
from veridical.meta.prediction_agreement import changes_that_matter
from veridical.meta.result import MEAN
from veridical.meta.strength import calibrate
from veridical.meta.worlds import Test
from veridical.metrics.input_noise import why_no_noise
from veridical.values.evaluation import Evaluation
from veridical.values.task import Task

ENOUGH = 1.5 * FEWEST
"""Samples that change their class, on average, so that nearly always as many do as a test needs."""


def reliability_of(
    task: Task,
    seats: Mapping[str, Seat],
    panel: Panel,
    effort: Effort,
    seed: int,
    progress: bool | None,
    notes: list[str],
    evaluation: Evaluation,
    path: NoisePath | None,
) -> MetaEvaluation | None:
    """Meta-evaluate the metrics on this task with its cheapest explainers.

    All explainers of an audit meet the same draws of a metric, so it is judged here with the same draws in
    every world too: what fresh ones would add is common to all explainers and moves no ranking.
    """
    few = some_of(task, max(effort.meta_samples, enough_samples(task)), seed)
    weights = any(p.is_floating_point() for p in task.predictor.model.parameters())
    tests: list[Test] = [*(["ipt"] if why_no_noise(task) is None else []), *(["mpt"] if weights else [])]  # type: ignore[list-item]
    scored = [who for who in panel.explainers if any(w == who for w, _ in evaluation.scores)]
    cheapest = sorted(scored, key=lambda who: rows_of(panel.explainers[who], task))[: effort.meta_explainers]
    reason, epsilon = None, None
    if len(few) < FEWEST:
        reason = f"{len(few)} samples are too few"
    elif not tests:
        reason = "neither inputs nor weights can be disturbed"
    elif len(cheapest) < 2:
        reason = "it ranks explainers and needs two"
    elif task.head == "regression":
        epsilon = float(task.outputs.double().std()) / 2
    if reason is not None:
        notes.append(f"The metrics could not be meta-evaluated here: {reason}.")
        return None
    heard = {
        label: seat.metric for label, seat in seats.items() if any(m == label for _, m in evaluation.scores)
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VeridicalWarning)
            return meta_evaluate(
                few,
                heard,
                {who: panel.explainers[who] for who in cheapest},
                tests=tests,
                draws=effort.meta_draws,
                iterations=effort.meta_iterations,
                ar=_disruption(few, tests, effort, epsilon, seed, path),
                epsilon=epsilon,
                same_draws=True,
                seed=seed,
                progress=progress,
            )
    except VeridicalError as error:
        notes.append(f"The metrics could not be meta-evaluated here: {error}.")
        return None


def voices(
    seats: Mapping[str, Seat], evaluation: Evaluation, reliability: MetaEvaluation | None
) -> tuple[list[Judge], dict[str, Tensor]]:
    """Every metric with its reliability and, where it must not be heard, the reason."""
    judges, draws = [], {}
    for label, seat in seats.items():
        if not any(m == label for _, m in evaluation.scores):
            continue
        judge = Judge(label, seat.system, seat.decides)
        if reliability is not None and label in reliability.books:
            found, dependence = reliability[label, MEAN], reliability.books[label].dependence
            low, high = (float(end[-1]) for end in found.interval(reliability.level))
            judge = replace(judge, reliability=found.mc, low=low, high=high, dependence=dependence.permuted)
            if len(found.resampled):
                draws[label] = meta_consistency(found.resampled)
            reason = ""
            if dependence.blind:
                reason = "its scores hardly depend on the explanation"
            elif high < CHANCE_CONSISTENCY:
                reason = (
                    f"its meta-consistency of {found.mc:.2f} is below that of a metric that always "
                    f"says the same ({CHANCE_CONSISTENCY})"
                )
            judge = replace(judge, ignored=reason)
        judges.append(judge)
    return judges, draws


def _disruption(
    task: Task,
    tests: list[Test],
    effort: Effort,
    epsilon: float | None,
    seed: int,
    path: NoisePath | None,
) -> dict[str, float]:
    """The noise of each test that disrupts the model; that on weights is read off GEF's path, if there."""
    out: dict[str, float] = {}
    # of few samples more must change, or those that did would be too few to test
    share = min(max(changes_that_matter(task), ENOUGH / len(task)), most_changed(task))
    for test in tests:
        known = None
        if test == "mpt" and path is not None and task.head != "regression":
            known = where_agreement_falls(path, 1 - share)
        if known is None:
            known = calibrate(task, test, "ar", epsilon, seed, effort.search_draws, share).amount
        out[test] = known
    return out


def most_changed(task: Task) -> float:
    """About the largest share of predictions that noise changes: by luck some keep their class."""
    classes = task.n_outputs if task.head in ("multiclass", "binary") and task.n_outputs > 1 else 2
    return 0.9 * (1 - 1 / classes)


def enough_samples(task: Task) -> int:
    """How many samples it takes for enough of them to change their class under disruption."""
    return math.ceil(ENOUGH / most_changed(task))


def where_agreement_falls(path: NoisePath, level: float) -> float | None:
    """The noise at which the fitted agreement first falls to `level`, between the levels that were asked."""
    before, kept = 0.0, 1.0
    for sigma, agreement in zip(path.searched, path.fitted, strict=True):
        if agreement <= level:
            share = (kept - level) / (kept - agreement) if kept > agreement else 1.0
            return before + share * (sigma - before)
        before, kept = sigma, agreement
    return None
