"""The stages of an audit, one after the other, each with its seconds and its rows."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from veridical._version import __version__
from veridical.auditing.candidates import choose_explainers, choose_judges, choose_lines, finetuned_judge
from veridical.auditing.check import check
from veridical.auditing.description import (
    beside,
    concepts_of,
    describe,
    prompts_of,
    reliability_of,
    standings_of,
)
from veridical.auditing.effort import Effort
from veridical.auditing.elimination import ENOUGH, Race, Runner, evaluation_of, price_of_scores, runners
from veridical.auditing.evidence import FEWEST
from veridical.auditing.jobs import JobRunner
from veridical.auditing.model_randomisation import given_models, other_models
from veridical.auditing.posthoc_checks import doubt
from veridical.auditing.result import Audit
from veridical.auditing.sampling import in_race_order
from veridical.auditing.sentences import sentences
from veridical.auditing.verdict import Field, decide, plant, voices_of
from veridical.errors import InputError, VeridicalWarning
from veridical.gef.perturbation_log import incomplete
from veridical.meta.admissible import PlantedDamage
from veridical.models.cost import Cost
from veridical.values.task import Task

LONG_SECONDS = 600.0
"""From here on an audit says beforehand how long it may take."""


def run(
    whole: Task,
    train: Any,
    explainers: Sequence[Any] | Mapping[str, Any] | None,
    plan: Effort,
    seed: int,
    concepts: Mapping[str, Any] | None,
    progress: bool | None,
    *,
    metrics: Any = None,
    controls: Any = None,
    lines: Sequence[str] | None = None,
    others: Sequence[Any] | None = None,
    keep_to_budget: bool = True,
    folder: Path | None = None,
    executor: Executor | None = None,
) -> Audit:
    """All stages of an audit on the samples that its effort affords; `audit` says what they are."""
    task = in_race_order(whole, plan.samples, seed)
    clock = _Clock(task)
    notes: list[str] = []
    wanted = choose_lines(lines)
    with clock("checks"):
        checks = check(task, whole, plan, seed)
    with clock("panel"):
        panel = choose_explainers(task, explainers, plan, controls)
    with clock("fine-tuning"):
        finetuned, table = finetuned_judge(task, train, checks, plan, seed, progress, notes)
        judges = choose_judges(task, plan, finetuned, wanted, metrics)
    with clock("swap"):
        copies, why_not = None, "it was not asked for"
        if "swap" in wanted:
            copies, why_not = other_models(task, seed) if others is None else (given_models(task, others), "")
    absent = {} if copies is not None else {"swap": why_not}
    if copies is not None and why_not:
        notes.append(f"The swap takes noisy copies of the model: {why_not}.")
    job_runner = JobRunner(
        seed, folder, task.content_hash() if folder is not None else "", executor, progress
    )
    with clock("race"):
        race = Race(
            task,
            judges,
            tuple(
                line
                for line in wanted
                if line == "removal" or (line == "swap" and copies) or (line == "truth" and judges.truth)
            ),
            copies,
            job_runner,
            plan.budget if keep_to_budget else 10**18,
            runners(panel.explainers, task, seed),
            {label: Runner(label, control, control=True) for label, control in panel.controls.items()},
            price_of_scores(judges.scoring, task, seed),
        )
        race.admit()
        if not race.runners:
            raise InputError("no explainer fits the budget: " + "; ".join(race.left_out.values()))
        heard = _race(race, plan, seed, notes, progress)
    skipped = {**panel.skipped, **race.left_out}
    for control in race.controls.values():
        if control.dropped:
            notes.append(f"Nobody is compared with the control {control.label}: {control.dropped}.")
    if all(runner.done[0].explanation is None for runner in race.runners.values()):
        told = "; ".join(f"{r.label}: {r.failures[0].message}" for r in race.runners.values())
        raise InputError(f"no explainer could be scored: {told}")
    evaluation = evaluation_of(race, judges, seed)
    with clock("description"):
        evaluation, path = describe(race, judges, evaluation, plan, seed)
    with clock("prompts"):
        prompts = prompts_of(task, evaluation, seed)
    with clock("meta-evaluation"):
        reliability = reliability_of(race, judges, plan, seed, progress, notes, path)
    with clock("verdict"):
        verdict = decide(
            Field(
                {label: runner.entry(judges) for label, runner in race.runners.items()},
                race.rules(),
                {label: runner.rows for label, runner in race.runners.items()},
                absent,
                {label: runner.dropped for label, runner in race.runners.items() if runner.dropped},
                {label: runner.doubts for label, runner in race.runners.items()},
            ),
            voices_of(judges, heard, reliability),
            seed,
        )
        near = beside(race, verdict.best, seed) if verdict.best else ()
    with clock("standing"):
        standings = standings_of(task, evaluation, verdict.best, plan, seed, notes)
    with clock("concepts"):
        compared = concepts_of(whole, concepts, seed, evaluation, notes)
    notes += incomplete(evaluation.scores.values())
    verdict = replace(verdict, sentences=sentences(verdict, checks, skipped, notes))
    return Audit(
        task,
        verdict,
        checks,
        evaluation,
        reliability,
        plan,
        seed,
        skipped,
        judges.refused,
        table,
        standings,
        compared,
        clock.seconds,
        clock.costs,
        {"veridical": __version__, "torch": torch.__version__, "python": platform.python_version()},
        tuple(notes),
        near,
        heard,
        job_runner.found,
        prompts=prompts,
    )


def _race(
    race: Race, plan: Effort, seed: int, notes: list[str], progress: bool | None
) -> PlantedDamage | None:
    """All looks; what planted damage said of the metrics."""
    heard: PlantedDamage | None = None
    started = time.perf_counter()
    for number, (start, stop) in enumerate(race.steps):
        if number and not race.affordable(start, stop):
            notes.append(
                f"The race ended at {start} samples: the next look does not fit the budget of "
                f"{race.budget:,} rows."
            )
            break
        race.look(start, stop)
        if not number:
            heard, race.heard = plant(race, plan, seed, progress)
            if not race.heard or stop < FEWEST:
                break
            _warn(race, time.perf_counter() - started)
        rules = race.rules()
        race.swap(rules)
        doubt(race, rules)
        if stop == race.steps[-1][1]:
            break
        if not race.drop(rules, seed) and stop >= ENOUGH:
            notes.append(f"The race ended at {stop} samples: nothing was open any more.")
            break
    return heard


def _warn(race: Race, seconds: float) -> None:
    """Say beforehand that it may take long, by what the first look took."""
    total = seconds / race.samples * len(race.task)
    if total > LONG_SECONDS:
        warnings.warn(
            f"this audit may take {total / 60:.0f} minutes here, if all of its {len(race.runners)} methods "
            "stay open; fewer samples=, fewer explainers=, a smaller budget=, effort='glance' or a GPU make "
            "it shorter",
            VeridicalWarning,
            stacklevel=5,
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
