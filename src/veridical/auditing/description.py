"""What describes and decides nothing: GEF, standing, prompts, concepts, meta-evaluation."""

from __future__ import annotations

import math
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from veridical.auditing.candidates import MetricPanel
from veridical.auditing.effort import Effort, some_of
from veridical.auditing.elimination import Elimination
from veridical.auditing.evidence import Test
from veridical.auditing.jobs import Job
from veridical.auditing.model_randomisation import sample_scores
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.errors import VeridicalError, VeridicalWarning
from veridical.explainers import Explainer
from veridical.explainers import registry as explainer_registry
from veridical.explainers.transforms import OtherClass, Shuffled
from veridical.gef import GEF, NoisePath
from veridical.meta import MetaEvaluation, meta_evaluate
from veridical.meta.consistency import MIN_SAMPLES
from veridical.meta.perturbations import Test as MetaTest
from veridical.meta.perturbations import calibrate, changes_that_matter
from veridical.metrics import ExplainerMetric, registry
from veridical.metrics.input_noise import why_no_noise
from veridical.models.predictor import take_side
from veridical.qge import Standing, standing
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.scores import Scores
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.concepts import Comparison
    from veridical.data.prompt_checks import PromptChecks


def describe(
    elimination: Elimination, panel: MetricPanel, table: Evaluation, effort: Effort, seed: int
) -> tuple[Evaluation, NoisePath | None]:
    """Score what describes, on the samples of the first stage; methods with costly maps are left out."""
    task = elimination.first_stage
    scores, failures = dict(table.scores), list(table.failures)
    cheap = {
        r.label: r.explainer
        for r in (*elimination.candidates.values(), *elimination.controls.values())
        if r.cost.forward <= effort.gef_rows and r.done[0].explanation is not None
    }
    path = None

    def keep(who: str, what: str, found: Scores | Exception) -> None:
        if isinstance(found, Scores):
            scores[who, what] = found
            if what == "gef_iso":  # the same perturbed models give both numbers
                own = found.details["q"]
                scores[who, "gef"] = replace(found, values=own, metric="gef", details={}, curve=None)
            return
        told = "".join(traceback.format_exception(found))
        failures.append(Failure(who, what, str(found), told))
        warnings.warn(f"metric '{what}' on '{who}' failed: {found}", VeridicalWarning, stacklevel=4)

    for label, (_, metric) in panel.describing.items():
        if isinstance(metric, GEF):
            path = metric.noise_path(task, Key(seed), effort.search_draws)
        if isinstance(metric, ExplainerMetric):
            for who, found in metric.score_all(task, cheap, Key(seed), elimination.jobs.memo).items():
                keep(who, label, found)
            continue
        for who, maps in table.explanations.items():
            try:
                few = maps.take(slice(0, len(task)))
                keep(who, label, metric(task, few, Key(seed), elimination.jobs.memo))  # type: ignore[operator]
            except Exception as error:
                keep(who, label, error)
    order = [*elimination.candidates, *elimination.controls]
    in_order = {cell: scores[cell] for who in order for cell in scores if cell[0] == who}
    return replace(table, scores=in_order, failures=failures), path


def beside(elimination: Elimination, best: str, seed: int) -> tuple[Test, ...]:
    """How the chosen method does against maps that metrics could mistake for good ones."""
    candidate, task = elimination.candidates[best], elimination.first_stage
    rivals: dict[str, Explainer] = {
        "its values in other places": Shuffled(candidate.explainer),
        "its maps of another class": OtherClass(candidate.explainer),
        "noise that moves with the outputs": explainer_registry.make("moving_noise"),
    }
    metrics = {label: elimination.panel.removal[label] for label in elimination.admissible_labels}
    rules, found = elimination.rules(), []
    for name, explainer in rivals.items():
        if explainer.inapplicable_reason(task) is not None:
            continue
        job = Job(best, explainer, metrics, task, task, f"beside: {name}")
        done = elimination.jobs.do([job], f"beside: {name}")
        theirs = sample_scores(done, [len(task)], elimination.panel.removal)
        own = candidate.sample_scores(elimination.panel.removal).first(len(task))
        found.append(Test.of("beside", name, rules.removal_units(own, [theirs])))
    return tuple(found)


_CONCEPTS = ("pca", "kmeans", "nmf", "cdisco")
"""Concept methods that an audit compares when nobody chose: quick ones, fitted on whole samples."""
_CONCEPT_ROWS = 1000
"""Samples that concepts are compared on, and twice as many train rows to fit them on: a row each."""


def prompts_of(task: Task, evaluation: Evaluation, seed: int) -> PromptChecks | None:
    """What is known of prompts beside their scores; None for other tasks."""
    if task.head != "generation":
        return None  # spares everybody else the import
    from veridical.data.generation import Generation
    from veridical.data.prompt_checks import prompt_checks

    if not isinstance(task, Generation):
        return None
    return prompt_checks(task, explainers=evaluation.explainers, metrics=evaluation.metrics, seed=seed)


def standings_of(
    task: Task, evaluation: Evaluation, who: str | None, effort: Effort, seed: int, notes: list[str]
) -> dict[str, Standing]:
    """Where the chosen explanation stands among random rankings, on a few samples."""
    explanation = None if who is None else evaluation.explanations.get(who)
    if who is None or explanation is None or not effort.standing_samples:
        return {}
    few = slice(0, min(effort.standing_samples, len(explanation)))
    metric = registry.make("pixel_flipping", steps=min(effort.flip_steps, task.space.n_features))
    try:
        found = standing(task[few], metric, explanation.take(few), draws=effort.standing_draws, seed=seed)
    except VeridicalError as error:
        notes.append(f"The standing of {who} could not be found: {error}")
        return {}
    return {who: found}


def concepts_of(
    task: Task, methods: Mapping[str, Any] | None, seed: int, evaluation: Evaluation, notes: list[str]
) -> Comparison | None:
    """SURF's verdict on concept methods, on more samples than an audit explains: each costs one row."""
    from veridical.concepts import compare, split  # few programs ask for concepts

    task = some_of(task, _CONCEPT_ROWS, seed)
    try:
        if methods is not None:
            return compare(task, methods, seed, seeds=3) if methods else None
        if task.train is None or not task.predictor.differentiable:
            return None
        parts = split(task)
        one = torch.zeros(1, dtype=torch.int64, device=task.device)
        rows = keyed.permutation(Key(seed) / "audit" / "train", one, 0, len(task.train))[0]
        rows = rows[: 2 * _CONCEPT_ROWS].sort().values
        train = parts.collect(task.train[rows], take_side(task.train_side, rows))
        return compare(train, _CONCEPTS, seed, seeds=3, test=parts.test(), head=parts.head)
    except VeridicalError as error:
        if methods is None:
            notes.append(f"Concepts were not compared: {error}")
            return None
        evaluation.failures.append(Failure("concepts", None, str(error), traceback.format_exc()))
        return None


STOP_AFTER = 1.5 * MIN_SAMPLES
"""Samples that change their class, on average, so that nearly always as many do as a test needs."""
SHARE = 0.5
"""Rows that a second opinion may take, as a share of those that the elimination took."""


def reliability_of(
    elimination: Elimination,
    panel: MetricPanel,
    effort: Effort,
    seed: int,
    progress: bool | None,
    notes: list[str],
    path: NoisePath | None,
) -> MetaEvaluation | None:
    """Meta-evaluate the removal metrics on this task with its cheapest explainers.

    All explainers of an audit meet the same draws of a metric, so it is meta-evaluated with the same draws
    for every perturbed model too: what fresh ones would add is common to all explainers and moves no ranking.
    """
    if not effort.meta_samples:
        return None
    task = elimination.task
    few = task[: max(effort.meta_samples, enough_samples(task))]
    weights = any(p.is_floating_point() for p in task.predictor.model.parameters())
    tests: list[MetaTest] = [*(["ipt"] if why_no_noise(task) is None else []), *(["mpt"] if weights else [])]  # type: ignore[list-item]
    scored = [
        candidate
        for candidate in elimination.candidates.values()
        if candidate.done[0].explanation is not None
    ]
    cheapest = sorted(scored, key=lambda candidate: candidate.rows)[: effort.meta_explainers]
    reason, epsilon = None, None
    if len(few) < MIN_SAMPLES:
        reason = f"{len(few)} samples are too few"
    elif not tests:
        reason = "neither inputs nor weights can be disturbed"
    elif len(cheapest) < 2:
        reason = "it ranks explainers and needs two"
    else:
        models = 2 + 2 * len(tests) * effort.meta_draws * effort.meta_iterations
        asked = elimination.estimate.of(len(cheapest), sum(r.rows for r in cheapest)) * len(few) * models
        if asked > SHARE * elimination.used:
            reason = f"it would ask {asked:,.0f} rows, more than half of what the elimination took"
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
                panel.removal,
                {candidate.label: candidate.explainer for candidate in cheapest},
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
    tests: list[MetaTest],
    effort: Effort,
    epsilon: float | None,
    seed: int,
    path: NoisePath | None,
) -> dict[str, float]:
    """The noise of each test that disrupts the model; that on weights is read off GEF's path, if there."""
    out: dict[str, float] = {}
    # of few samples more must change, or those that did would be too few to test
    share = min(max(changes_that_matter(task), STOP_AFTER / len(task)), most_changed(task))
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
    return math.ceil(STOP_AFTER / most_changed(task))


def where_agreement_falls(path: NoisePath, level: float) -> float | None:
    """The noise at which the fitted agreement first falls to `level`, between the levels that were asked."""
    before, kept = 0.0, 1.0
    for sigma, agreement in zip(path.searched, path.fitted, strict=True):
        if agreement <= level:
            share = (kept - level) / (kept - agreement) if kept > agreement else 1.0
            return before + share * (sigma - before)
        before, kept = sigma, agreement
    return None
