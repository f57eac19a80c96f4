"""The stages of an audit, one after the other, each with its seconds and its rows."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from veridical._version import __version__
from veridical.auditing.candidates import choose_criteria, choose_explainers, choose_metrics, finetuned_model
from veridical.auditing.check import check
from veridical.auditing.description import (
    beside,
    concepts_of,
    describe,
    prompts_of,
    reliability_of,
    standings_of,
)
from veridical.auditing.effort import Effort, in_drawn_order
from veridical.auditing.elimination import (
    STOP_AFTER,
    Candidate,
    Elimination,
    candidates,
    cost_of_scores,
    evaluation_of,
)
from veridical.auditing.evidence import MIN_SAMPLES
from veridical.auditing.jobs import JobRunner
from veridical.auditing.model_randomisation import given_models, other_models
from veridical.auditing.posthoc_checks import run_posthoc_checks
from veridical.auditing.result import Audit
from veridical.auditing.sentences import sentences
from veridical.auditing.verdict import Field, decide, metric_roles, plant
from veridical.errors import InputError
from veridical.gef.perturbation_log import incomplete
from veridical.meta.admissible import PlantedDamage
from veridical.models.cost import Cost
from veridical.values.task import Task


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
    criteria: Sequence[str] | None = None,
    others: Sequence[Any] | None = None,
    keep_to_budget: bool = True,
    folder: Path | None = None,
    executor: Executor | None = None,
) -> Audit:
    """All stages of an audit on the samples that its effort affords; `audit` says what they are."""
    task = in_drawn_order(whole, plan.samples, seed)
    clock = _Clock(task)
    notes: list[str] = []
    wanted = choose_criteria(criteria)
    with clock("checks"):
        checks = check(task, whole, plan, seed)
    with clock("panel"):
        methods = choose_explainers(task, explainers, plan, controls)
    with clock("fine-tuning"):
        finetuned, table = finetuned_model(task, train, checks, plan, seed, progress, notes)
        panel = choose_metrics(task, plan, finetuned, wanted, metrics)
    with clock("randomisation"):
        copies, why = None, "it was not asked for"
        if "randomisation" in wanted:
            copies, why = other_models(task, seed) if others is None else (given_models(task, others), "")
    absent = {} if copies is not None else {"randomisation": why}
    if copies is not None and why:
        notes.append(f"The model randomisation test takes noisy copies of the model: {why}.")
    jobs = JobRunner(seed, folder, task.content_hash() if folder is not None else "", executor, progress)
    with clock("elimination"):
        elimination = Elimination(
            task,
            panel,
            tuple(
                line
                for line in wanted
                if line == "removal"
                or (line == "randomisation" and copies)
                or (line == "truth" and panel.truth)
            ),
            copies,
            jobs,
            plan.budget if keep_to_budget else 10**18,
            candidates(methods.explainers, task, seed),
            {label: Candidate(label, control, control=True) for label, control in methods.controls.items()},
            cost_of_scores(panel.scoring, task, seed),
        )
        elimination.admit()
        if not elimination.candidates:
            raise InputError("no explainer fits the budget: " + "; ".join(elimination.left_out.values()))
        admissible = _eliminate(elimination, plan, seed, notes, progress)
    skipped = {**methods.skipped, **elimination.left_out}
    for control in elimination.controls.values():
        if control.dropped:
            notes.append(f"Nobody is compared with the control {control.label}: {control.dropped}.")
    if all(candidate.done[0].explanation is None for candidate in elimination.candidates.values()):
        told = "; ".join(f"{r.label}: {r.failures[0].message}" for r in elimination.candidates.values())
        raise InputError(f"no explainer could be scored: {told}")
    evaluation = evaluation_of(elimination, panel, seed)
    with clock("description"):
        evaluation, path = describe(elimination, panel, evaluation, plan, seed)
    with clock("prompts"):
        prompts = prompts_of(task, evaluation, seed)
    with clock("meta-evaluation"):
        reliability = reliability_of(elimination, panel, plan, seed, progress, notes, path)
    with clock("verdict"):
        started = elimination.candidates.items()
        known = Field(
            entries={label: candidate.entry(panel) for label, candidate in started},
            rules=elimination.rules(),
            rows={label: candidate.rows for label, candidate in started},
            absent=absent,
            dropped={label: candidate.dropped for label, candidate in started if candidate.dropped},
            posthoc={label: candidate.posthoc for label, candidate in started},
        )
        verdict = decide(known, metric_roles(panel, admissible, reliability), seed)
        near = beside(elimination, verdict.best, seed) if verdict.best else ()
    with clock("standing"):
        standings = standings_of(task, evaluation, verdict.best, plan, seed, notes)
    with clock("concepts"):
        compared = concepts_of(whole, concepts, seed, evaluation, notes)
    notes += incomplete(evaluation.scores.values())
    verdict = replace(verdict, sentences=sentences(verdict, checks, skipped, notes))
    return Audit(
        task=task,
        verdict=verdict,
        checks=checks,
        evaluation=evaluation,
        reliability=reliability,
        effort=plan,
        seed=seed,
        skipped_explainers=skipped,
        skipped_metrics=panel.refused,
        robustness=table,
        standings=standings,
        concepts=compared,
        seconds=clock.seconds,
        costs=clock.costs,
        versions={
            "veridical": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        notes=tuple(notes),
        beside=near,
        damage=admissible,
        kept=jobs.found,
        prompts=prompts,
    )


def _eliminate(
    elimination: Elimination, plan: Effort, seed: int, notes: list[str], progress: bool | None
) -> PlantedDamage | None:
    """All stages; what planted damage said of the metrics."""
    admissible: PlantedDamage | None = None
    for number, (start, stop) in enumerate(elimination.steps):
        if number and not elimination.fits(elimination.cost("scores", stop - start, elimination.remaining)):
            notes.append(
                f"The elimination ended at {start} samples: the next stage does not fit the budget of "
                f"{elimination.budget:,} rows."
            )
            break
        elimination.analyse(start, stop)
        if not number:
            admissible, elimination.admissible = plant(elimination, plan, seed, progress)
            if not elimination.admissible or stop < MIN_SAMPLES:
                break
        rules = elimination.rules()
        elimination.randomisation(rules)
        run_posthoc_checks(elimination, rules)
        if stop == elimination.steps[-1][1]:
            break
        if not elimination.drop(rules, seed) and stop >= STOP_AFTER:
            notes.append(f"The elimination ended at {stop} samples: nothing was open any more.")
            break
    return admissible


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
