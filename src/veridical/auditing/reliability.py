"""A second opinion on the metrics: their meta-consistency on this very task, where it is affordable."""

from __future__ import annotations

import math
import warnings

from veridical.auditing.effort import Effort
from veridical.auditing.panel import Judges
from veridical.auditing.race import Race
from veridical.errors import VeridicalError, VeridicalWarning
from veridical.gef import NoisePath
from veridical.meta import MetaEvaluation, meta_evaluate
from veridical.meta.consistency import FEWEST
from veridical.meta.prediction_agreement import changes_that_matter
from veridical.meta.strength import calibrate
from veridical.meta.worlds import Test
from veridical.metrics.input_noise import why_no_noise
from veridical.values.task import Task

ENOUGH = 1.5 * FEWEST
"""Samples that change their class, on average, so that nearly always as many do as a test needs."""
SHARE = 0.5
"""Rows that a second opinion may take, as a share of those that the race took."""


def reliability_of(
    race: Race,
    judges: Judges,
    effort: Effort,
    seed: int,
    progress: bool | None,
    notes: list[str],
    path: NoisePath | None,
) -> MetaEvaluation | None:
    """Meta-evaluate the removal metrics on this task with its cheapest explainers.

    All explainers of an audit meet the same draws of a metric, so it is judged here with the same draws in
    every world too: what fresh ones would add is common to all explainers and moves no ranking.
    """
    if not effort.meta_samples:
        return None
    task = race.task
    few = task[: max(effort.meta_samples, enough_samples(task))]
    weights = any(p.is_floating_point() for p in task.predictor.model.parameters())
    tests: list[Test] = [*(["ipt"] if why_no_noise(task) is None else []), *(["mpt"] if weights else [])]  # type: ignore[list-item]
    scored = [runner for runner in race.runners.values() if runner.done[0].explanation is not None]
    cheapest = sorted(scored, key=lambda runner: runner.rows)[: effort.meta_explainers]
    reason, epsilon = None, None
    if len(few) < FEWEST:
        reason = f"{len(few)} samples are too few"
    elif not tests:
        reason = "neither inputs nor weights can be disturbed"
    elif len(cheapest) < 2:
        reason = "it ranks explainers and needs two"
    else:
        worlds = 2 + 2 * len(tests) * effort.meta_draws * effort.meta_iterations
        asked = race.price.of(len(cheapest), sum(r.rows for r in cheapest)) * len(few) * worlds
        if asked > SHARE * race.used:
            reason = f"it would ask {asked:,.0f} rows, more than half of what the race took"
    if reason is not None:
        notes.append(f"The metrics were not meta-evaluated here: {reason}.")
        return None
    if task.head == "regression":
        epsilon = float(task.outputs.double().std()) / 2
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VeridicalWarning)
            return meta_evaluate(
                few,
                judges.removal,
                {runner.label: runner.explainer for runner in cheapest},
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
