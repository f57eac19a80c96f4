"""The stages of an audit, one after the other, each with its seconds and its rows."""

from __future__ import annotations

import platform
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from veridical._version import __version__
from veridical.audit.checks import check_model
from veridical.audit.cost import warning
from veridical.audit.effort import Effort
from veridical.audit.finetuned_model import finetuned_judge
from veridical.audit.panel import Seat, choose_explainers, choose_judges
from veridical.audit.reliability import reliability_of, voices
from veridical.audit.result import Audit
from veridical.audit.sampling import chosen, some_of
from veridical.audit.scoring import score_everyone, unscored
from veridical.audit.sentences import sentences
from veridical.audit.verdict import decide
from veridical.errors import InputError, VeridicalError, VeridicalWarning
from veridical.gef import GEF, NoisePath
from veridical.gef.receipt import incomplete
from veridical.metrics import registry
from veridical.model.cost import Cost
from veridical.model.predictor import take_side
from veridical.qge import Standing, standing
from veridical.random import keyed
from veridical.random.keyed import Key
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.surf import Comparison


def run(
    task: Task,
    train: Any,
    explainers: Sequence[Any] | Mapping[str, Any] | None,
    plan: Effort,
    seed: int,
    concepts: Mapping[str, Any] | None,
    progress: bool | None,
) -> Audit:
    """All stages of an audit on the samples that its effort affords; `verb.audit` says what they are."""
    whole, task = task, some_of(task, plan.samples, seed)
    clock = _Clock(task)
    notes: list[str] = []
    with clock("checks"):
        checks = check_model(task, plan, seed)
    with clock("panel"):
        panel = choose_explainers(task, explainers, plan)
    with clock("fine-tuning"):
        finetuned, table = finetuned_judge(task, train, checks, plan, seed, progress, notes)
    seats, refused = choose_judges(task, plan, finetuned)
    long = warning(task, panel, seats, plan)
    if long is not None:
        warnings.warn(long, VeridicalWarning, stacklevel=3)
    with clock("noise"):
        path = _noise_path(task, seats, plan, seed)
    if path is not None:
        clock.costs["noise"] = Cost(path.rows)  # a search is no score's cost, but somebody waited for it
    with clock("scoring"):
        evaluation = score_everyone(task, panel, seats, seed, progress)
    with clock("meta-evaluation"):
        reliability = reliability_of(task, seats, panel, plan, seed, progress, notes, evaluation, path)
    judges, draws = voices(seats, evaluation, reliability)
    methods = [who for who in panel.explainers if any(w == who for w, _ in evaluation.scores)]
    controls = [who for who in panel.controls if any(w == who for w, _ in evaluation.scores)]
    if not methods:
        raise InputError("no explainer could be scored: " + "; ".join(f.message for f in evaluation.failures))
    notes += unscored(evaluation, seats, panel)
    notes += incomplete(evaluation.scores.values())
    with clock("verdict"):
        verdict = decide(evaluation.scores, methods, controls, judges, weight_draws=draws, seed=seed)
        verdict = replace(verdict, sentences=sentences(verdict, checks, notes))
    with clock("standing"):
        standings = _standings(task, evaluation, verdict.best or methods[0], plan, seed, notes)
    with clock("concepts"):
        compared = _concepts(whole, concepts, seed, evaluation, notes)
    return Audit(
        task,
        verdict,
        checks,
        evaluation,
        reliability,
        plan,
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


def _noise_path(task: Task, seats: Mapping[str, Seat], effort: Effort, seed: int) -> NoisePath | None:
    """The path along which GEF disturbs the weights, looked for with as many draws as the effort affords."""
    metric = next((seat.metric for seat in seats.values() if isinstance(seat.metric, GEF)), None)
    return None if metric is None else metric.noise_path(task, Key(seed), effort.search_draws)


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


def _standings(
    task: Task, evaluation: Evaluation, who: str, effort: Effort, seed: int, notes: list[str]
) -> dict[str, Standing]:
    """Where the chosen explanation stands among random rankings, on a few samples."""
    explanation = evaluation.explanations.get(who)
    if explanation is None or not effort.standing_samples:
        return {}
    few = chosen(task, effort.standing_samples, seed)
    metric = registry.make("pixel_flipping", steps=min(effort.flip_steps, task.space.n_features))
    try:
        found = standing(task[few], metric, explanation.take(few), draws=effort.standing_draws, seed=seed)
    except VeridicalError as error:
        notes.append(f"The standing of {who} could not be found: {error}")
        return {}
    return {who: found}


_CONCEPTS = ("pca", "kmeans", "nmf", "cdisco")
"""Concept methods that an audit judges when nobody chose: quick ones, fitted on whole samples."""
_CONCEPT_ROWS = 1000
"""Samples that concepts are judged on, and twice as many train rows to fit them on: a row each."""


def _concepts(
    task: Task, methods: Mapping[str, Any] | None, seed: int, evaluation: Evaluation, notes: list[str]
) -> Comparison | None:
    """SURF's verdict on concept methods, on more samples than an audit explains: each costs one row."""
    from veridical.surf import compare, compare_on, split  # few programs ask for concepts

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
        return compare_on(train, parts.test(), parts.head, _CONCEPTS, seed, seeds=3)
    except VeridicalError as error:
        if methods is None:
            notes.append(f"Concepts were not judged: {error}")
            return None
        evaluation.failures.append(Failure("concepts", None, str(error), traceback.format_exc()))
        return None
