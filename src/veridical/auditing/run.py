"""The audit of a model's explanations: its stages, one after the other, each with its seconds and rows."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, overload

import torch

from veridical._version import __version__
from veridical.api import as_method, labelled
from veridical.auditing import near_data
from veridical.auditing.candidates import (
    choose_criteria,
    choose_explainers,
    choose_metrics,
    finetuned_model,
    finetuning_rows,
)
from veridical.auditing.check import check_model, moves_by, rows_of_checks, summary_note, why_no_verdict
from veridical.auditing.description import (
    beside,
    concepts_of,
    described,
    other_fill,
    prompts_of,
    reliability_of,
    standings_of,
)
from veridical.auditing.effort import FILL_ROWS, Effort, effort_of, first_of_each, heavy, in_drawn_order
from veridical.auditing.elimination import (
    STOP_AFTER,
    Candidate,
    Elimination,
    candidates,
    evaluation_of,
)
from veridical.auditing.evidence import MIN_SAMPLES
from veridical.auditing.forecast import Forecast, cost_of_scores, forecast
from veridical.auditing.jobs import JobRunner
from veridical.auditing.model_randomisation import given_models, has_weights, other_models
from veridical.auditing.near_data import NearData
from veridical.auditing.posthoc_checks import give_grades, run_posthoc_checks
from veridical.auditing.result import Audit
from veridical.auditing.sentences import Circumstances, in_sentences, with_another_fill
from veridical.auditing.verdict import Field, decide, metric_roles
from veridical.concepts.materials import entries
from veridical.core.allowed import MANY, Within
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError, VeridicalError, warn
from veridical.gef.perturbation_log import incomplete
from veridical.meta.admissible import PlantedDamage, planted_damage
from veridical.metrics import NearRemoval
from veridical.models.context import MANY_ROWS
from veridical.models.cost import Cost
from veridical.perturb.fills import Marginal, Summary
from veridical.values.task import Task

NOT_REPEATED = ("task", "train", "folder", "executor", "device", "progress", "dry_run")
"""What does not belong to the call that repeats an audit, or has no name."""


@overload
def audit(task: Task, *given: Any, dry_run: Literal[True], **named: Any) -> Forecast: ...
@overload
def audit(task: Task, *given: Any, dry_run: Literal[False] = False, **named: Any) -> Audit: ...


@checked  # type: ignore[misc]  # the overloads name what differs alone
def audit(
    task: Task,
    train: Any = None,
    explainers: Sequence[Any] | Mapping[str, Any] | None = None,
    effort: str | Effort = "quick",
    seed: int = 0,
    *,
    metrics: Sequence[Any] | Mapping[str, Any] | None = None,
    controls: Sequence[Any] | Mapping[str, Any] | None = None,
    criteria: Sequence[str] | None = None,
    others: Sequence[Any] | None = None,
    budget: Annotated[int, Within(1, 10**15)] | None = None,
    concepts: Any = None,
    describe: bool | None = None,
    dry_run: bool = False,
    samples: Annotated[int, Within(2, MANY)] | None = None,
    folder: str | Path | None = None,
    executor: Executor | None = None,
    device: str | torch.device | None = None,
    progress: bool | None = None,
) -> Audit | Forecast:
    """Audit the explanations of a model: which explainer to use, which not to trust, and how sure that is.

    Every applicable explainer, and controls that know nothing of the model, are compared on ever more
    samples. A method is trusted if it beats every control when features are removed (`metrics`), if its maps
    fit this model and not a copy with other weights (the model randomisation test), and, where object masks
    tell what matters, if it finds that (truth). What only describes is measured where it is asked for.

    Parameters
    ----------
    task : Task
        The model and the samples whose explanations are compared; at least two.
    train : array, optional
        Rows, or rows with labels, on which F-Fidelity may fine-tune where masks disturb the model; those of
        the task by default.
    explainers : sequence or mapping, optional
        Names, objects or finished maps; one of every family that applies by default. Named ones run whatever
        they cost, unless `budget` is given, too.
    effort : str or Effort
        "glance", "quick", "standard" or "thorough": samples, draws and budget.
    seed : int
        Seed of all draws.
    metrics, controls : sequence or mapping, optional
        What decides under removal, and what has to be beaten, in the place of ours.
    criteria : sequence of str, optional
        Which of "removal", "randomisation" and "truth" must hold; all that the task offers by default.
    others : sequence of models, optional
        Models of the same kind, trained on shuffled labels, say, in the place of copies with other weights: a
        black box cannot be copied, and without `others` trust in its explanations stays provisional.
    budget, samples : int, optional
        Rows that may be evaluated, and samples that are explained; override the effort's.
    concepts : optional
        Concept methods to compare by SURF. By default none, or with `describe` a few where the head is linear
        and the task has train rows.
    describe : bool, optional
        Whether to measure what decides nothing, too: GEF, sensitivity, MPRT, assumptions and reliability of
        the metrics, standing among random maps. By default at "standard" and "thorough".
    dry_run : bool
        Whether to say only what the audit would evaluate.
    folder : path, optional
        What is finished is kept here: after Ctrl-C the same call goes on.
    executor : concurrent.futures.Executor, optional
        Spreads the work, and gives the same bits; also `veridical.jobs.RayPool`.
    device : str or torch.device, optional
        Where to compute; where the task is by default.
    progress : bool, optional
        Whether to show a bar; in a terminal by default.

    Returns
    -------
    Audit or Forecast
        The verdict with its evidence; prints it, and `report` writes it. With `dry_run` the rows, seconds and
        memory that it would take, by stage and method.

    Raises
    ------
    InputError
        Where there is nothing to compare, a name is unknown or no explainer fits the budget.

    Examples
    --------
    >>> import veridical as vd
    >>> task = vd.tasks.load("known/linear")
    >>> vd.audit(task, explainers=["input_x_gradient", "saliency"], samples=32).best
    'input_x_gradient'
    """
    call = _call(locals())
    if task.members is not None:
        raise InputError("the samples of this task are classes; an audit explains inputs")
    if len(task) < 2:
        raise InputError("an audit compares samples and needs at least two")
    whole = task if device is None else task.to(device)
    if explainers is not None:
        explainers = labelled(explainers, lambda thing: as_method(thing, whole))
    plan = effort_of(effort, whole)
    if samples is not None:
        plan = replace(plan, samples=samples, meta_samples=min(samples, plan.meta_samples))
    if budget is not None:
        plan = replace(plan, budget=budget)
    if describe is not None:
        plan = replace(plan, describe=describe)
    # who names explainers wants them, whatever they cost
    rows = plan.budget if explainers is None or budget is not None else 10**18
    methods_of_concepts = None if concepts is None else entries(concepts)
    given_fill = whole.fill
    if plan.coarse and isinstance(given_fill, Marginal) and given_fill.repeats_on(whole) > FILL_ROWS:
        whole = whole.changed(fill=Summary(FILL_ROWS))
    distinct = whole[first_of_each(whole)]
    task = in_drawn_order(distinct, plan.samples, seed)
    clock, notes = _Clock(task), list[str]()
    if len(distinct) < len(whole):
        notes.append(f"{len(whole) - len(distinct)} samples repeat others and were left out.")
    wanted = choose_criteria(criteria)
    place = None if folder is None else Path(folder)
    jobs = JobRunner(seed, place, task.content_hash() if folder is not None else "", executor, progress)
    with clock("panel"):
        methods = choose_explainers(task, explainers, plan, controls)
        panel = choose_metrics(task, plan, None, wanted, metrics)
        measured = None if heavy(task) and not plan.describe else methods.explainers
        randomised = "randomisation" in wanted and (others is not None or has_weights(task))
        elimination = Elimination(
            task,
            panel,
            wanted,
            randomised,
            jobs,
            rows,
            candidates(methods.explainers, task, seed),
            {label: Candidate(label, control, control=True) for label, control in methods.controls.items()},
            cost_of_scores(panel.scoring, task, seed, measured),
            describes=plan.describe,
        )
        elimination.admit()
        why_none = why_no_verdict(task)
    if dry_run:
        title = f"Audit of {task.name} ({len(task)} samples, effort {plan.name})"
        checked = clock.costs["panel"].forward + rows_of_checks(task, whole, given_fill)
        return forecast(elimination, plan, title, why_none, finetuning_rows(task, train, plan), checked)
    expected = min(rows, elimination.cost(len(task), elimination.remaining))
    if expected > MANY_ROWS and not why_none:
        warn(
            f"this audit evaluates up to about {expected:,.0f} rows of the model for "
            f"{len(methods.explainers)} explainers on {len(task)} samples; effort='glance', samples= or "
            "budget= or fewer explainers lower it, and dry_run=True says which take them"
        )
    if why_none:
        plan = replace(plan, describe=False)
    with clock("checks"):
        checks = check_model(task, whole, plan, seed, assumed=plan.describe)
        if whole.fill is not given_fill and not why_none:
            notes.append(summary_note(task, given_fill, Key(seed) / "audit" / "summary"))
    with clock("fine-tuning"):
        finetuned, table = None, None
        if not why_none:
            finetuned, table = finetuned_model(task, train, checks, plan, seed, progress, notes)
        if finetuned is not None:
            elimination.panel = panel = choose_metrics(task, plan, finetuned, wanted, metrics)
    with clock("randomisation"):
        given = None if others is None else given_models(task, others)  # refused though nobody asks them
        copies, why = None, "it was not required"
        if "randomisation" in wanted and not why_none:
            copies, why = other_models(task, seed) if given is None else (given, "")
    if copies is None and not why_none:
        elimination.absent["randomisation"] = why
    if copies is not None and why:
        notes.append(f"The model randomisation test takes noisy copies of the model: {why}.")
    there = {"removal": True, "randomisation": copies is not None, "truth": bool(panel.truth)}
    elimination.copies, elimination.randomised = copies, copies is not None
    elimination.criteria = tuple(criterion for criterion in wanted if there[criterion])
    with clock("near data"):
        near_the_data = NearData(False, "there is no verdict") if why_none else near_data.check(task, seed)
        if near_the_data.about_data is False and metrics is None:
            elimination.stay_near_the_data(near_the_data)
            panel = elimination.panel
    with clock("elimination"):
        damage = None if why_none else _eliminate(elimination, plan, seed, notes, progress)
    skipped = {**methods.skipped, **elimination.left_out}
    evaluation = evaluation_of(elimination, seed)
    with clock("description"):
        if not why_none:
            evaluation = described(elimination, evaluation, plan, seed)
    with clock("prompts"):
        prompts = None if why_none else prompts_of(task, evaluation, seed)
    with clock("meta-evaluation"):
        reliability = reliability_of(elimination, plan, seed, progress, notes)
    with clock("grades"):
        if not why_none:
            give_grades(elimination)
    with clock("verdict"):
        started = elimination.candidates.items()
        known = Field(
            entries={label: elimination.entry(candidate) for label, candidate in started},
            rules=elimination.rules(),
            rows={label: candidate.rows for label, candidate in started},
            why_none=why_none,
        )
        verdict = decide(known, metric_roles(panel, damage, reliability), seed)
    with clock("neighbours"):
        near = beside(elimination, verdict.best, seed) if plan.describe and verdict.best else ()
    with clock("standing"):
        standings = standings_of(task, evaluation, verdict.best, plan, seed, notes)
    with clock("concepts"):
        compared = None
        if plan.describe or methods_of_concepts is not None:
            compared = concepts_of(whole, methods_of_concepts, seed, evaluation, notes)
    with clock("another fill"):
        other_words, fill = "", other_fill(task) if plan.describe else None
        if fill is not None:
            again = audit(
                task.with_fill(fill),
                train,
                methods.explainers,
                replace(plan, describe=False),
                seed,
                metrics=metrics,
                controls=controls,
                criteria=criteria,
                others=others,
                budget=plan.budget,
                concepts=(),
                executor=executor,
                progress=progress,
            )
            other_words = with_another_fill(verdict, again.verdict, task.fill.name, fill.name)
    of_removal = "" if why_none or elimination.absent.get("removal") else near_the_data.sentence
    notes += incomplete(evaluation.scores.values())
    circumstances = Circumstances(
        checks,
        len(distinct),
        len(task),
        elimination.ended,
        moves_by(task),
        task.head,
        skipped,
        notes,
        tuple(filter(None, (of_removal, other_words))),
    )
    return Audit(
        task=task,
        verdict=replace(verdict, words=in_sentences(verdict, circumstances)),
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
        versions={"veridical": __version__, "torch": torch.__version__, "python": platform.python_version()},
        notes=tuple(notes),
        beside=near,
        damage=damage,
        kept=jobs.found,
        call=call,
        prompts=prompts,
    )


def _eliminate(
    elimination: Elimination,
    plan: Effort,
    seed: int,
    notes: list[str],
    progress: bool | None,
) -> PlantedDamage | None:
    """Run all stages; what planted damage showed of the metrics."""
    damage: PlantedDamage | None = None
    for start, stop in elimination.steps:
        if start and not elimination.hold_back(stop - start, elimination.rules()):
            elimination.ended = f"the next stage does not fit the budget of {elimination.budget:,} rows"
            break
        elimination.analyse(start, stop)
        if not start:
            damage, elimination.admissible = _plant(elimination, plan, seed, progress)
            if damage is None or not elimination.admissible or stop < MIN_SAMPLES:
                break
            elimination.leave_out_fine_tuned()
        rules = elimination.rules()
        elimination.randomisation(rules)
        run_posthoc_checks(elimination, rules)
        if stop == len(elimination.task):
            break
        if not elimination.drop(rules, seed) and stop >= STOP_AFTER:
            elimination.ended = "nothing was open any more"
            break
    for control in elimination.controls.values():
        if control.dropped:
            notes.append(f"Nobody is compared with the control {control.label}: {control.dropped}.")
    methods = elimination.candidates.values()
    if all(candidate.done[0].explanation is None for candidate in methods):
        reasons = "; ".join(f"{r.label}: {r.failures[0].message}" for r in methods)
        raise InputError(f"no explainer could be scored: {reasons}")
    return damage


def _plant(
    elimination: Elimination, plan: Effort, seed: int, progress: bool | None
) -> tuple[PlantedDamage | None, tuple[int, ...]]:
    """Plant damage in the maps of the first stage; what it showed, and which removal metrics see it."""
    metrics, few = elimination.panel.removal, elimination.first_stage
    # maps that are made by masks are no reference for what stays near the data
    near = metrics.get(NearRemoval.name) if "near" in elimination.criteria else None
    reference = near.effects(few) if isinstance(near, NearRemoval) else None
    try:
        found = planted_damage(
            few,
            metrics,
            reference=reference,
            levels=plan.damage,
            seed=seed,
            progress=progress,
            memo=elimination.jobs.memo,
        )
    except VeridicalError:
        return None, ()
    return found, tuple(i for i, label in enumerate(metrics) if label in found.admissible)


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


def _call(given: Mapping[str, Any]) -> str:
    """The call that repeats an audit, as far as names can give it."""

    def name(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {label: name(held) for label, held in value.items()}
        if isinstance(value, list | tuple):
            return [name(held) for held in value]
        if value is None or isinstance(value, str | int | float):
            return value
        return getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__)

    kept = [key for key, value in given.items() if key not in NOT_REPEATED and value is not None]
    return f"vd.audit({', '.join(['task', *(f'{key}={name(given[key])!r}' for key in kept)])})"
