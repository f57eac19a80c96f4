"""The verb: audit a model's explanations with all five systems."""

from __future__ import annotations

import platform
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from veridical import rng
from veridical._version import __version__
from veridical.api import evaluate
from veridical.audit.checks import Checks, check_model
from veridical.audit.cost import warning
from veridical.audit.panel import (
    Effort,
    EffortName,
    Panel,
    Seat,
    choose_explainers,
    choose_judges,
    effort_of,
    rows_of,
)
from veridical.audit.result import Audit
from veridical.audit.sentences import joined, sentences
from veridical.audit.verdict import CHANCE_CONSISTENCY, Judge, decide
from veridical.errors import InputError, VeridicalError, VeridicalWarning
from veridical.evaluation import Evaluation, Failure
from veridical.fidelity import Finetuned, RobustnessTable, finetune, robustness_table
from veridical.fidelity.finetuning import why_no_finetuning
from veridical.fidelity.robustness import ORIGINAL, TUNED
from veridical.meta import MetaEvaluation, meta_evaluate
from veridical.meta.consistency import FEWEST, meta_consistency
from veridical.meta.result import MEAN
from veridical.metrics.input_noise import why_no_noise
from veridical.predictor import take_side
from veridical.qge import Standing, standing
from veridical.rng import Key
from veridical.scores import Cost
from veridical.surf import Comparison, ConceptMethod, compare
from veridical.task import Task

FINETUNING_RATE = 1e-3
"""Ten times the published rate, at which few epochs leave most models as they were."""


def audit(
    task: Task,
    train: Any = None,
    explainers: Sequence[Any] | Mapping[str, Any] | None = None,
    effort: EffortName | Effort = "quick",
    seed: int = 0,
    *,
    concepts: Sequence[ConceptMethod] = (),
    samples: int | None = None,
    device: str | torch.device | None = None,
    progress: bool | None = None,
) -> Audit:
    """Audit the explanations of a model: which explainer to use, which not to trust, and how sure that is.

    The model is checked, explained by every applicable explainer and by controls that know nothing of it,
    scored by GEF, F-Fidelity, QGE and descriptive metrics, and the metrics themselves are meta-evaluated on
    this very task; the verdict weighs them by what they proved worth. `train` (rows, or rows with labels)
    lets F-Fidelity fine-tune where masks disturb the model. `concepts` asks for a comparison of concept
    methods by SURF. `effort` sets samples and draws; `samples` overrides the number of samples.

    >>> import veridical as vd
    >>> task = vd.tasks.load("known/linear")
    >>> vd.audit(task, explainers=["input_x_gradient", "saliency"], samples=32).best
    'input_x_gradient'
    """
    chosen = effort_of(effort)
    if samples is not None:
        if samples < 2:
            raise InputError(f"an audit compares samples and needs at least two, got samples={samples}")
        chosen = replace(chosen, samples=samples, meta_samples=min(samples, chosen.meta_samples))
    if task.members is not None:
        raise InputError("the samples of this task are classes; an audit explains inputs")
    if len(task) < 2:
        raise InputError("an audit compares samples and needs at least two")
    task = task if device is None else task.to(device)
    task = task[: chosen.samples] if len(task) > chosen.samples else task
    clock = _Clock(task)
    notes: list[str] = []
    with clock("checks"):
        checks = check_model(task, chosen, seed)
    with clock("panel"):
        panel = choose_explainers(task, explainers, chosen)
    with clock("fine-tuning"):
        finetuned, table = _finetuned(task, train, checks, chosen, seed, progress, notes)
    seats, refused = choose_judges(task, chosen, finetuned)
    long = warning(task, panel, seats, chosen)
    if long is not None:
        warnings.warn(long, VeridicalWarning, stacklevel=2)
    with clock("scoring"):
        evaluation = evaluate(
            task,
            {**panel.explainers, **panel.controls},
            {label: seat.metric for label, seat in seats.items()},
            seed=seed,
            progress=progress,
        )
    with clock("meta-evaluation"):
        reliability = _reliability(task, seats, panel, chosen, seed, progress, notes, evaluation)
    judges, draws = _judges(seats, evaluation, reliability)
    methods = [who for who in panel.explainers if any(w == who for w, _ in evaluation.scores)]
    controls = [who for who in panel.controls if any(w == who for w, _ in evaluation.scores)]
    if not methods:
        raise InputError("no explainer could be scored: " + "; ".join(f.message for f in evaluation.failures))
    notes += _unscored(evaluation, seats, panel)
    with clock("verdict"):
        verdict = decide(evaluation.scores, methods, controls, judges, weight_draws=draws, seed=seed)
        verdict = replace(verdict, sentences=sentences(verdict, checks, notes))
    with clock("standing"):
        standings = _standings(task, evaluation, verdict.best or methods[0], chosen, seed, notes)
    with clock("concepts"):
        compared = _concepts(task, concepts, seed, evaluation)
    return Audit(
        task,
        verdict,
        checks,
        evaluation,
        reliability,
        chosen,
        seed,
        panel.skipped,
        refused,
        table,
        standings,
        compared,
        clock.seconds,
        clock.costs,
        {"veridical": __version__, "torch": torch.__version__, "python": platform.python_version()},
        tuple(notes),
    )


class _Clock:
    """Seconds and model rows of each stage."""

    def __init__(self, task: Task) -> None:
        self.meter = task.predictor.meter
        self.seconds: dict[str, float] = {}
        self.costs: dict[str, Cost] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start, before = time.perf_counter(), self.meter.cost
        yield
        self.seconds[stage] = time.perf_counter() - start
        self.costs[stage] = self.meter.cost - before


def _finetuned(
    task: Task,
    train: Any,
    checks: Checks,
    effort: Effort,
    seed: int,
    progress: bool | None,
    notes: list[str],
) -> tuple[Finetuned | None, RobustnessTable | None]:
    """The judge of removal tests: a fine-tuned model where masks disturb the original and rows are there."""
    if task.head == "regression" or not checks.masking_hurts:
        notes.append(
            "F-Fidelity judges with the original model (RFid): "
            + (
                "a regression has no right class."
                if task.head == "regression"
                else "masks hardly disturb it."
                if any(check.name == "masking" for check in checks.checks)
                else "there is one feature, and none is left when it is masked."
            )
        )
        return None, None
    reason = why_no_finetuning(task, train)
    if reason is not None:
        notes.append(
            f"F-Fidelity judges with the original model (RFid), since it cannot be fine-tuned: {reason}."
        )
        return None, None
    if not effort.training_rows:
        notes.append(
            f"F-Fidelity judges with the original model (RFid): effort '{effort.name}' leaves no time to "
            "fine-tune."
        )
        return None, None
    # every sample shall lose a feature, but a few very short ones shall not have half of all others masked
    beta = min(0.5, max(0.1, 1.0 / max(1, int(task.space.counts(len(task)).min()))))
    try:
        rows = _training_rows(task, train, effort.training_rows, seed)
        made = finetune(
            task,
            **rows,
            beta=beta,
            epochs=effort.training_epochs,
            rate=FINETUNING_RATE,
            seed=seed,
            progress=progress,
        )
        shares = (0.0, beta / 2, beta)
        table = robustness_table(
            task, made, shares=shares, reference="prediction", seed=seed, progress=progress, **rows
        )
    except VeridicalError as error:
        notes.append(f"F-Fidelity judges with the original model (RFid), since fine-tuning failed: {error}.")
        return None, None
    notes.append(_said_of(table))
    return made, table


def _training_rows(task: Task, train: Any, most: int, seed: int) -> dict[str, Any]:
    """The rows to fine-tune on with their side inputs: all, or as many random ones as the effort affords."""
    given, labels = train if isinstance(train, tuple) else (train, None)
    side: Any = None
    if train is None:
        given, labels, side = task.train, task.train_labels, task.train_side
    if len(given) > most:
        order = rng.permutation(
            Key(seed) / "audit" / "training rows", torch.zeros(1, dtype=torch.int64), 0, len(given)
        )
        index = order[0, :most]
        given = given[index.to(given.device) if isinstance(given, Tensor) else index.numpy()]
        if labels is not None:
            labels = labels[index.to(labels.device) if isinstance(labels, Tensor) else index.numpy()]
        side = None if side is None else take_side(side, index.to(task.device))
    return {"train": given if labels is None else (given, labels), "train_side": side}


def _said_of(table: RobustnessTable) -> str:
    """What fine-tuning did to the model's stand against masks."""
    original, tuned = table.accuracy[ORIGINAL], table.accuracy[TUNED]
    lost, back = original[0] - original[-1], tuned[-1] - original[-1]
    said = (
        f"F-Fidelity judges with a model fine-tuned under masks, which wins back {100 * back:.1f} of the "
        f"{100 * lost:.1f} points of agreement that masks cost the original"
    )
    if back < lost / 2:
        return f"{said}: what is left is lost information or too short a training, so read it with reserve."
    return f"{said}."


def _reliability(
    task: Task,
    seats: Mapping[str, Seat],
    panel: Panel,
    effort: Effort,
    seed: int,
    progress: bool | None,
    notes: list[str],
    evaluation: Evaluation,
) -> MetaEvaluation | None:
    """Meta-evaluate the metrics on this task with its cheapest explainers.

    All explainers of an audit meet the same draws of a metric, so it is judged here with the same draws in
    every world too: what fresh ones would add is common to all explainers and moves no ranking.
    """
    few = task[: min(len(task), effort.meta_samples)]
    weights = any(p.is_floating_point() for p in task.predictor.model.parameters())
    tests = [*(["ipt"] if why_no_noise(task) is None else []), *(["mpt"] if weights else [])]
    scored = [who for who in panel.explainers if any(w == who for w, _ in evaluation.scores)]
    cheapest = sorted(scored, key=lambda who: rows_of(panel.explainers[who], task))[: effort.meta_explainers]
    reason = None
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
                epsilon=epsilon if task.head == "regression" else None,
                same_draws=True,
                seed=seed,
                progress=progress,
            )
    except VeridicalError as error:
        notes.append(f"The metrics could not be meta-evaluated here: {error}.")
        return None


def _judges(
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


def _unscored(evaluation: Evaluation, seats: Mapping[str, Seat], panel: Panel) -> Iterator[str]:
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


def _standings(
    task: Task, evaluation: Evaluation, who: str, effort: Effort, seed: int, notes: list[str]
) -> dict[str, Standing]:
    """Where the chosen explanation stands among random rankings, on a few samples."""
    explanation = evaluation.explanations.get(who)
    if explanation is None or not effort.standing_samples:
        return {}
    few = slice(0, effort.standing_samples)
    from veridical.metrics import registry

    metric = registry.make("pixel_flipping", steps=min(effort.flip_steps, task.space.n_features))
    try:
        found = standing(task[few], metric, explanation.take(few), draws=effort.standing_draws, seed=seed)
    except VeridicalError as error:
        notes.append(f"The standing of {who} could not be found: {error}")
        return {}
    return {who: found}


def _concepts(
    task: Task, methods: Sequence[ConceptMethod], seed: int, evaluation: Evaluation
) -> Comparison | None:
    if not methods:
        return None
    try:
        return compare(task, list(methods), seed)
    except Exception as error:
        evaluation.failures.append(Failure("concepts", None, str(error), traceback.format_exc()))
        return None
