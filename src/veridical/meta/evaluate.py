"""The verb: meta-evaluate metrics on a task, for a set of explainers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from veridical._version import __version__
from veridical.api import as_metric, labelled
from veridical.core.key import Key
from veridical.core.settings import holds_code
from veridical.errors import InputError, unknown_name
from veridical.explainers import as_explainer
from veridical.jobs import Store, content_hash, resume
from veridical.meta.consistency import MIN_SAMPLES
from veridical.meta.perturbations import Strength, amounts, check_head, check_tests, plan
from veridical.meta.result import MetaEvaluation, joined, packed, unpacked
from veridical.meta.scoring import Visit
from veridical.values.task import Task


def meta_evaluate(
    task: Task,
    metrics: Sequence[Any] | Mapping[str, Any],
    explainers: Sequence[Any] | Mapping[str, Any],
    *,
    tests: Sequence[str] = ("ipt", "mpt"),
    draws: int = 5,
    iterations: int | Sequence[int] = 3,
    seed: int = 0,
    nr: Strength = "published",
    ar: Strength | None = None,
    epsilon: float | None = None,
    average_first: bool = False,
    published: bool = False,
    same_draws: bool | Sequence[str] = False,
    redraws: int = 0,
    resamples: int = 200,
    level: float = 0.95,
    device: str | torch.device | None = None,
    progress: bool | None = None,
    after_iteration: Callable[[MetaEvaluation], None] | None = None,
    folder: str | Path | None = None,
    executor: Executor | None = None,
) -> MetaEvaluation:
    """Measure how far each metric deserves to be believed on this task, for these explainers.

    In every world of the plan (test x mode x iteration x draw) inputs ("ipt"), weights ("mpt") or both
    ("combined") are perturbed, slightly (NR) or disruptively (AR), each explanation is made once, and every
    metric scores it. `nr` and `ar` set the noise: "published", "calibrated" (what `ar` is by default), a
    number, or a number per test. `epsilon` says what a changed prediction is in a regression. `published`
    follows the published program where it departs from its paper, with its strengths.
    A metric draws its own random numbers anew in every world, since what they contribute to a score is part
    of how far it can be trusted; `same_draws` (for all metrics, or some labels) repeats them instead.
    A world in which fewer than six samples count tells nothing; it is drawn again up to `redraws` times.
    `iterations` is their number, or the numbers of those to visit, as range(2, 3): parts visited apart, in
    other processes say, are put together by `vd.meta.joined`.
    `after_iteration` is called with the result so far whenever an iteration is done.
    With a `folder` every iteration is a job that is kept there, and the same call goes on after a run that
    was ended; with an `executor` of `concurrent.futures` iterations run side by side. Counts are then those
    of iterations on their own: each scores the unperturbed task itself.

    >>> import veridical as vd
    >>> task = vd.Task(torch.nn.Linear(4, 3), torch.randn(16, 4))
    >>> result = vd.meta.meta_evaluate(
    ...     task, ["sparseness"], ["gradient", "saliency"], draws=1, iterations=1, ar="published"
    ... )
    >>> list(result.to_frame().columns[:8])
    ['metric', 'category', 'test', 'iac_nr', 'iac_ar', 'iec_nr', 'iec_ar', 'mc']
    """
    task = task if device is None else task.to(device)
    judges = labelled(metrics, as_metric)
    methods = labelled(explainers, as_explainer)
    if not judges:
        raise InputError("give at least one metric to meta-evaluate")
    if len(methods) < 2:
        raise InputError(
            f"meta-evaluation ranks explainers and needs at least two, got {len(methods)}: "
            f"{', '.join(methods) or 'none'}"
        )
    if len(task) < MIN_SAMPLES:
        raise InputError(
            f"the task has {len(task)} samples; a signed-rank test needs at least {MIN_SAMPLES} whose "
            "prediction changed, so give it some dozens"
        )
    if not isinstance(draws, int) or draws < 1:
        raise InputError(f"draws counts from 1, got {draws!r}")
    if not isinstance(redraws, int) or redraws < 0:
        raise InputError(f"redraws counts from 0, got {redraws!r}")
    numbers = _numbers(iterations)
    if resamples < 0 or not 0 < level < 1:
        raise InputError(f"resamples is at least 0 and level between 0 and 1, got {resamples} and {level}")
    if folder is not None or executor is not None:
        given = {"tests": tuple(tests), "draws": draws, "seed": seed, "nr": nr, "ar": ar, "epsilon": epsilon}
        given |= {"average_first": average_first, "published": published, "same_draws": same_draws}
        given |= {"redraws": redraws, "resamples": resamples, "level": level}
        parts = [Iteration(task, judges, methods, number, given) for number in numbers]
        return joined(kept_iterations(parts, folder, executor, progress))
    chosen = check_tests(tests, task)
    fixed = _labels(same_draws, judges)
    check_head(task, epsilon)
    for judge in judges.values():
        judge.check(task)
    for method in methods.values():
        method.check(task)
    if ar is None:
        ar = "published" if published else "calibrated"
    noise, remarks = amounts(task, chosen, {"nr": nr, "ar": ar}, epsilon, seed)
    worlds = plan(chosen, noise, numbers, draws)
    visit = Visit(
        task,
        judges,
        methods,
        chosen,
        Key(seed) / "meta",
        numbers,
        draws,
        published,
        epsilon,
        fixed,
        redraws,
        average_first,
    )

    def result(done: int) -> MetaEvaluation:
        books, kept = visit.found(done)
        return MetaEvaluation(
            books=books,
            kept=kept,
            explainers=tuple(methods),
            tests=chosen,
            amounts=noise,
            remarks=tuple(remarks + visit.remarks),
            failures=tuple(visit.failures),
            shared=visit.shared,
            shared_cost=visit.shared_cost,
            published=published,
            average_first=average_first,
            resamples=resamples,
            level=level,
            seed=seed,
            interrupted=visit.interrupted,
            iterations=numbers[:done],
        )

    tell = None if after_iteration is None else lambda done: after_iteration(result(done))
    visit.run(worlds, progress, tell)
    return result(len(numbers))


@dataclass(frozen=True, eq=False)
class Iteration:
    """One iteration of a meta-evaluation, as a job."""

    task: Task
    metrics: Mapping[str, Any]
    explainers: Mapping[str, Any]
    number: int
    given: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """What its result is known by; code of the user's own, which may change, is like nothing before."""
        parts = {**self.metrics, **self.explainers}
        made = {
            who: secrets.token_hex(8) if holds_code(part) else part.to_json() for who, part in parts.items()
        }
        orders = [list(self.metrics), list(self.explainers)]
        return content_hash([self.task.content_hash(), made, orders, self.number, self.given, __version__])


def carry_out(part: Iteration) -> MetaEvaluation:
    """Visit one iteration; an interrupted one is not kept."""
    found = meta_evaluate(
        part.task, part.metrics, part.explainers, iterations=(part.number,), progress=False, **part.given
    )
    if found.interrupted:
        raise KeyboardInterrupt
    return found


def kept_iterations(
    parts: Sequence[Iteration], folder: str | Path | None, executor: Executor | None, progress: bool | None
) -> list[MetaEvaluation]:
    """The results of iterations: those in the folder are read, the others made and kept there."""
    store = None if folder is None else Store(folder)

    def load(hash: str, _: Iteration) -> MetaEvaluation | None:
        found = None if store is None else store.read_cell("iterations", hash)
        return None if found is None else unpacked(found[1], found[0])

    def save(hash: str, _: Iteration, result: MetaEvaluation) -> None:
        if store is not None:
            tensors, header = packed(result)
            store.write_cell("iterations", hash, header, tensors)

    jobs = [(part.hash, part) for part in parts]
    return resume(
        jobs, carry_out, load=load, save=save, executor=executor, what="meta-evaluating", progress=progress
    )


def _numbers(iterations: int | Sequence[int]) -> tuple[int, ...]:
    """The numbers of the iterations to visit, each once and in order."""
    if isinstance(iterations, int) and iterations >= 1:
        return tuple(range(iterations))
    numbers = tuple(iterations) if isinstance(iterations, Sequence) else ()
    if (
        not numbers
        or len(set(numbers)) < len(numbers)
        or not all(isinstance(n, int) and n >= 0 for n in numbers)
    ):
        raise InputError(
            f"iterations counts from 1, or is the numbers of some, from 0 and each once; got {iterations!r}"
        )
    return tuple(sorted(numbers))


def _labels(given: bool | Sequence[str], judges: Mapping[str, Any]) -> frozenset[str]:
    """The metrics whose own draws are the same in every world."""
    if isinstance(given, bool):
        return frozenset(judges if given else ())
    for label in (given,) if isinstance(given, str) else given:
        if label not in judges:
            raise unknown_name("metric of this evaluation", label, judges)
    return frozenset((given,) if isinstance(given, str) else given)
