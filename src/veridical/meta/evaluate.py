"""The verb: meta-evaluate metrics on a task, for a set of explainers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import torch

from veridical._version import __version__
from veridical.api import as_method, as_metric, labelled
from veridical.core.allowed import Between, Count, Index
from veridical.core.key import Key
from veridical.core.settings import checked, holds_code
from veridical.errors import InputError, unknown_name
from veridical.jobs import Store, content_hash, resume
from veridical.meta.admissible import tolerance
from veridical.meta.consistency import MIN_SAMPLES
from veridical.meta.perturbations import Strength, amounts, check_head, check_tests, plan
from veridical.meta.result import MetaEvaluation, joined, packed, unpacked
from veridical.meta.scoring import ScoringRun
from veridical.values.task import Task


@checked
def meta_evaluate(
    task: Task,
    metrics: Sequence[Any] | Mapping[str, Any],
    explainers: Sequence[Any] | Mapping[str, Any],
    *,
    tests: Sequence[str] = ("ipt", "mpt"),
    draws: Count = 5,
    iterations: int | Sequence[int] = 3,
    seed: int = 0,
    nr: Strength = "published",
    ar: Strength | None = None,
    epsilon: float | None = None,
    average_first: bool = False,
    published: bool = False,
    same_draws: bool | Sequence[str] = False,
    resamples: Index = 200,
    level: Between = 0.95,
    device: str | torch.device | None = None,
    progress: bool | None = None,
    folder: str | Path | None = None,
    executor: Executor | None = None,
) -> MetaEvaluation:
    """Measure how far each metric deserves to be believed on this task, for these explainers.

    Under every perturbation of the plan (test x mode x iteration x draw) inputs ("ipt"), weights ("mpt") or
    both ("combined") are perturbed, slightly (NR) or disruptively (AR), each explanation is made once, and
    every metric scores it. A metric draws its own random numbers anew under every perturbation, since what
    they contribute to a score is part of how far it can be trusted.

    Parameters
    ----------
    task
        The model and the samples, some dozens of them.
    metrics, explainers
        Names, classes or objects, or mappings of labels to them; at least two explainers.
    tests
        "ipt" (inputs), "mpt" (weights) and "combined".
    draws
        Perturbations per iteration, test and mode.
    iterations
        Their number, or the numbers of those to score, as range(2, 3): parts scored apart, in other processes
        say, are put together by `vd.meta.joined`.
    seed
        The seed of every draw.
    nr, ar
        The noise: "published", "calibrated" (the default of `ar`), a number, or a number per test; for inputs
        (a, b) is uniform noise from a to b, as {"ipt": (0.0, 1.0), "mpt": 2.0}.
    epsilon
        How far an output must move for a prediction of a regression to have changed.
    average_first
        Average the perturbed scores over draws before they are ranked: equation 6 as printed.
    published
        Follow the published program where it departs from its paper, with its strengths.
    same_draws
        Repeat a metric's own draws under every perturbation, for all metrics or for some labels.
    resamples, level
        Bootstrap resamples over samples, and the level of their intervals.
    device
        Where to compute; by default where the task is.
    progress
        Whether to show a progress bar; by default on terminals.
    folder
        Every iteration is a job that is kept here; the same call goes on after a run that was ended.
    executor
        An executor of `concurrent.futures` in which iterations run side by side. With it or a folder, counts
        are those of iterations on their own: each scores the unperturbed task itself.

    Returns
    -------
    MetaEvaluation
        Meta-consistency by metric and test, with everything it was computed from.

    Raises
    ------
    InputError
        If metrics, explainers or samples are too few, or a setting is out of range.
    NotApplicableError
        If a test, a metric or an explainer does not apply to the task.

    Examples
    --------
    >>> import veridical as vd
    >>> task = vd.Task(torch.nn.Linear(4, 3), torch.randn(16, 4))
    >>> result = vd.meta.meta_evaluate(
    ...     task, ["sparseness"], ["gradient", "saliency"], draws=1, iterations=1, ar="published"
    ... )
    >>> list(result.to_frame().columns[:8])
    ['metric', 'category', 'test', 'iac_nr', 'iac_ar', 'iec_nr', 'iec_ar', 'mc']
    """
    task = task if device is None else task.to(device)
    metrics = labelled(metrics, as_metric)
    explainers = labelled(explainers, lambda thing: as_method(thing, task))
    if not metrics:
        raise InputError("give at least one metric to meta-evaluate")
    if len(explainers) < 2:
        raise InputError(
            f"meta-evaluation ranks explainers and needs at least two, got {len(explainers)}: "
            f"{', '.join(explainers) or 'none'}"
        )
    if len(task) < MIN_SAMPLES:
        raise InputError(
            f"the task has {len(task)} samples; a signed-rank test needs at least {MIN_SAMPLES} whose "
            "prediction changed, so give it some dozens"
        )
    numbers = _numbers(iterations)
    if folder is not None or executor is not None:
        call = {"task": task, "metrics": metrics, "explainers": explainers, "tests": tuple(tests)}
        call |= {"draws": draws, "seed": seed, "nr": nr, "ar": ar, "epsilon": epsilon, "published": published}
        call |= {"average_first": average_first, "same_draws": same_draws}
        call |= {"resamples": resamples, "level": level}
        calls = [{**call, "iterations": (number,)} for number in numbers]
        return joined(kept_iterations(calls, folder, executor, progress))
    chosen = check_tests(tests, task)
    fixed = _labels(same_draws, metrics)
    check_head(task, epsilon)
    for metric in metrics.values():
        metric.check(task)
    for explainer in explainers.values():
        explainer.check(task)
    if ar is None:
        ar = "published" if published else "calibrated"
    noise, remarks = amounts(task, chosen, {"nr": nr, "ar": ar}, epsilon, seed)
    run = ScoringRun(
        task,
        metrics,
        explainers,
        chosen,
        Key(seed) / "meta",
        numbers,
        draws,
        published,
        epsilon,
        fixed,
        average_first,
    )
    run.run(plan(chosen, noise, numbers, draws), progress)
    return MetaEvaluation(
        scores=run.scores,
        kept=run.kept,
        explainers=tuple(explainers),
        tests=chosen,
        amounts=noise,
        remarks=tuple(remarks + run.broken),
        failures=tuple(run.failures),
        explanations=run.explanations,
        explanation_cost=run.explanation_cost,
        published=published,
        average_first=average_first,
        ties=tolerance(task),
        resamples=resamples,
        level=level,
        seed=seed,
        interrupted=run.interrupted,
        iterations=numbers,
    )


def call_hash(call: Mapping[str, Any]) -> str:
    """What the result of an iteration is known by; code of the user's own, which may change, is like new."""
    parts = {**call["metrics"], **call["explainers"]}
    made = {who: secrets.token_hex(8) if holds_code(part) else part.to_json() for who, part in parts.items()}
    orders = [list(call["metrics"]), list(call["explainers"])]
    rest = {name: value for name, value in call.items() if name not in ("task", "metrics", "explainers")}
    return content_hash([call["task"].content_hash(), made, orders, rest, __version__])


def carry_out(call: Mapping[str, Any]) -> MetaEvaluation:
    """Score one iteration; an interrupted one is not kept."""
    found = meta_evaluate(**call, progress=False)
    if found.interrupted:
        raise KeyboardInterrupt
    return found


def kept_iterations(
    calls: Sequence[Mapping[str, Any]],
    folder: str | Path | None,
    executor: Executor | None,
    progress: bool | None,
) -> list[MetaEvaluation]:
    """The results of iterations: those in the folder are read, the others made and kept there."""
    store = None if folder is None else Store(folder)

    def load(hash: str, _: Mapping[str, Any]) -> MetaEvaluation | None:
        found = None if store is None else store.read_cell("iterations", hash)
        return None if found is None else unpacked(found[1], found[0])

    def save(hash: str, _: Mapping[str, Any], result: MetaEvaluation) -> None:
        if store is not None:
            tensors, header = packed(result)
            store.write_cell("iterations", hash, header, tensors)

    jobs = [(call_hash(call), call) for call in calls]
    return resume(
        jobs, carry_out, load=load, save=save, executor=executor, what="meta-evaluating", progress=progress
    )


def _numbers(iterations: int | Sequence[int]) -> tuple[int, ...]:
    """The numbers of the iterations to visit, each once and in order."""
    numbers = tuple(range(iterations) if isinstance(iterations, int) else iterations)
    known = all(isinstance(n, int) and n >= 0 for n in numbers)
    if not numbers or len(set(numbers)) < len(numbers) or not known:
        raise InputError(
            f"iterations counts from 1, or is the numbers of some, from 0 and each once; got {iterations!r}"
        )
    return tuple(sorted(numbers))


def _labels(given: bool | Sequence[str], metrics: Mapping[str, Any]) -> frozenset[str]:
    """The metrics whose own draws are the same under every perturbation."""
    labels = (metrics if given else ()) if isinstance(given, bool) else given
    labels = (labels,) if isinstance(labels, str) else labels
    for label in labels:
        if label not in metrics:
            raise unknown_name("metric of this evaluation", label, metrics)
    return frozenset(labels)
