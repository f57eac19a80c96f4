"""What describes and decides nothing: GEF, standing, prompts, concepts, meta-evaluation."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from veridical.auditing.effort import Effort, some_of
from veridical.auditing.elimination import Elimination
from veridical.auditing.evidence import Test
from veridical.auditing.jobs import Job
from veridical.auditing.model_randomisation import sample_scores
from veridical.concepts import Comparison, compare, split
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.data.generation import Generation
from veridical.data.prompt_checks import PromptChecks, prompt_checks
from veridical.errors import InputError, VeridicalError, VeridicalWarning, warn
from veridical.explainers import Explainer
from veridical.explainers import registry as explainer_registry
from veridical.explainers.input_noise import why_no_noise
from veridical.explainers.transforms import OtherClass, Shuffled
from veridical.gef import GEF
from veridical.meta import MetaEvaluation, meta_evaluate
from veridical.meta.consistency import MIN_SAMPLES
from veridical.metrics import ExplainerMetric, registry
from veridical.models.predictor import take_side
from veridical.perturb.fills import Blur, Fill, Mean
from veridical.qge import Standing, standing
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.scores import Scores
from veridical.values.task import Task


def described(elimination: Elimination, table: Evaluation, effort: Effort, seed: int) -> Evaluation:
    """Score what describes, on the samples of the first stage; methods with costly maps are left out."""
    task, memo = elimination.first_stage, elimination.jobs.memo
    scores, failures = dict(table.scores), list(table.failures)
    everyone = {**elimination.candidates, **elimination.controls}
    cheap = {
        label: candidate.explainer
        for label, candidate in everyone.items()
        if candidate.cost.forward <= effort.gef_rows
        and candidate.done[0].explanation is not None
        and not candidate.explainer.one_model
    }
    for label, metric in elimination.panel.describing.items():
        found: dict[str, Scores | Exception] = {}
        if isinstance(metric, GEF):
            metric.noise_path(task, Key(seed), effort.search_draws)
        if isinstance(metric, ExplainerMetric):
            found = dict(metric.score_all(task, cheap, Key(seed), memo))
        else:
            for who, maps in table.explanations.items():
                try:
                    few = maps.take(slice(0, len(task)))
                    found[who] = metric(task, few, Key(seed), memo)  # type: ignore[operator]
                except Exception as error:
                    found[who] = error
        for who, one in found.items():
            if isinstance(one, Exception):
                trace = "".join(traceback.format_exception(one))
                failures.append(Failure(who, label, str(one), trace))
                warn(f"metric '{label}' on '{who}' failed: {one}")
                continue
            scores[who, label] = one
            if label == "gef_iso":  # the same perturbed models give both numbers
                values = one.details["q"]
                scores[who, "fast_gef"] = replace(
                    one, values=values, metric="fast_gef", details={}, curve=None
                )
    in_order = {cell: scores[cell] for who in everyone for cell in scores if cell[0] == who}
    return replace(table, scores=in_order, failures=failures)


def beside(elimination: Elimination, best: str, seed: int) -> tuple[Test, ...]:
    """How the chosen method does against maps that metrics could mistake for good ones."""
    candidate, task = elimination.candidates[best], elimination.first_stage
    rivals: dict[str, Explainer] = {
        "its values in other places": Shuffled(candidate.explainer),
        "its maps of another class": OtherClass(candidate.explainer),
        "noise that moves with the outputs": explainer_registry.make("moving_noise"),
    }
    metrics = {label: elimination.panel.removal[label] for label in elimination.admissible_labels}
    rules, found = elimination.rules(), dict[tuple[str, str], Tensor]()
    for name, explainer in rivals.items():
        fixed = isinstance(explainer, OtherClass) and candidate.explainer.one_model
        if fixed or explainer.inapplicable_reason(task) is not None:
            continue
        job = Job(best, explainer, metrics, task, task, f"beside: {name}")
        done = elimination.jobs.do([job], f"beside: {name}")
        theirs = sample_scores(done, [len(task)], elimination.panel.removal)
        own = candidate.sample_scores(elimination.panel.removal).first(len(task))
        found["beside", name] = rules.removal_units(own, [theirs])
    return tuple(Test.all_of(found))


def other_fill(task: Task) -> Fill | None:
    """Another fill that suits the inputs: a blur of images and series, means of columns of numbers."""
    if not task.inputs.is_floating_point() or hasattr(task.predictor.source.module, "codec"):
        return None
    blurred = task.modality in ("image", "series")
    fill = Blur() if blurred else Mean() if task.modality == "table" and task.train is not None else None
    return None if fill is None or fill.name == task.fill.name else fill


META_EXPLAINERS = 3
"""Explainers on which metrics are meta-evaluated, the cheapest first."""
_CONCEPTS = ("pca", "kmeans", "nmf", "cdisco")
"""Concept methods that an audit compares when nobody chose: quick ones, fitted on whole samples."""
_CONCEPT_ROWS = 1000
"""Samples that concepts are compared on, and twice as many train rows to fit them on: a row each."""


def prompts_of(task: Task, evaluation: Evaluation, seed: int) -> PromptChecks | None:
    """What is known of prompts beside their scores; None for other tasks."""
    if not isinstance(task, Generation):
        return None
    return prompt_checks(task, explainers=evaluation.explainers, metrics=evaluation.metrics, seed=seed)


def standings_of(
    task: Task, evaluation: Evaluation, who: str | None, effort: Effort, seed: int, notes: list[str]
) -> dict[str, Standing]:
    """Where the chosen explanation stands among random rankings, on a few samples."""
    explanation = None if who is None else evaluation.explanations.get(who)
    if who is None or explanation is None or not (effort.describe and effort.standing_samples):
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


def reliability_of(
    elimination: Elimination, effort: Effort, seed: int, progress: bool | None, notes: list[str]
) -> MetaEvaluation | None:
    """Meta-evaluate the removal metrics on this task with its cheapest explainers: a second opinion.

    All explainers of an audit meet the same draws of a metric, so it is meta-evaluated with the same draws
    for every perturbed model too: what fresh ones would add is common to all explainers and moves no ranking.
    """
    if not (effort.describe and effort.meta_samples):
        return None
    task = elimination.task
    few = task[: effort.meta_samples]
    weights = any(p.is_floating_point() for p in task.predictor.model.parameters())
    tests = [*(["ipt"] if why_no_noise(task) is None else []), *(["mpt"] if weights else [])]
    scored = [r for r in elimination.candidates.values() if r.done[0].explanation is not None]
    cheapest = sorted(scored, key=lambda candidate: candidate.rows)[:META_EXPLAINERS]
    try:
        if len(few) < MIN_SAMPLES or not tests or len(cheapest) < 2:
            raise InputError(
                f"it needs {MIN_SAMPLES} samples, inputs or weights that can be disturbed, and two explainers"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VeridicalWarning)
            return meta_evaluate(
                few,
                elimination.panel.removal,
                {candidate.label: candidate.explainer for candidate in cheapest},
                tests=tests,
                draws=effort.meta_draws,
                iterations=effort.meta_iterations,
                epsilon=float(task.outputs.double().std()) / 2 if task.head == "regression" else None,
                same_draws=True,
                seed=seed,
                progress=progress,
            )
    except VeridicalError as error:
        notes.append(f"The metrics were not meta-evaluated here: {error}.")
        return None
