"""The plan of a study: what each axis holds, and from that every job, made one after the other when needed.

A job is known by the content hash of what decides its result: version and settings of explainer and metric,
content of the task, chunk plan, seed, rows. Labels are not among them, so renaming something computes nothing
again. The product of the axes is never written out; the plan's file grows with their sum.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch

from veridical.errors import FormatError, VeridicalError
from veridical.explainers import Explainer
from veridical.jobs import Job, Store, content_hash
from veridical.metrics import AnyMetric, Metric
from veridical.study.preparations import preparations
from veridical.study.resolve import identify, identify_task, load_task, make_explainer, make_metric
from veridical.study.spec import Frozen, Positive
from veridical.study.study_file import Choice, StudyFile, expand
from veridical.values.task import Task

FORMAT = 6
KIND = "plan"
FILE = "plan.json"


class Planned(Frozen):
    """What was chosen; `cached`: whether a change of it would be seen."""

    choice: Choice
    cached: bool

    @property
    def label(self) -> str:
        return self.choice.label


class PlannedTask(Planned):
    """A task with the digest of its content, and which explainers draw on it at random."""

    digest: str
    samples: Positive
    rows: Positive
    draws: dict[str, bool]


class PlannedThing(Planned):
    """An explainer or metric with what its hash says; `modules` of the user's are imported before it is made.

    `prepares`: seed by seed, what it needs first.
    """

    content: dict[str, Any]
    modules: tuple[str, ...] = ()
    evaluates: Literal["", "map", "method"] = ""
    prepares: tuple[tuple[dict[str, Any], ...], ...] = ()

    @cached_property
    def digest(self) -> str:
        return content_hash(self.content)


@dataclass(frozen=True)
class StudyJob(Job):
    """One piece of a study.

    `prepare` estimates something once from a whole task that every shard and explainer uses (a fine-tuned
    model, a noise path); `explain` makes the maps of one explainer on one shard, which serve every metric;
    `score` is one cell. The shard is a range of rows [start, stop); `facts` says what is prepared.
    """

    kind: Literal["prepare", "explain", "score"]
    task: PlannedTask
    shard: tuple[int, int]
    seed: int = 0
    explainer: PlannedThing | None = None
    metric: PlannedThing | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Rows of the task that this job works on."""
        return self.shard[1] - self.shard[0]

    @property
    def labels(self) -> dict[str, Any]:
        """What its task, explainer and metric are called, and its seed."""
        things = {"task": self.task, "explainer": self.explainer, "metric": self.metric}
        return {**{what: thing.label if thing else "" for what, thing in things.items()}, "seed": self.seed}

    @property
    def cached(self) -> bool:
        """Whether a file under this job's hash can be trusted to be its result."""
        return all(thing is None or thing.cached for thing in (self.task, self.explainer, self.metric))

    def __str__(self) -> str:
        *names, seed = self.labels.values()
        name = " / ".join([*filter(None, names), f"seed {seed}"])
        return f"{self.kind} {name}, rows {self.shard[0]} to {self.shard[1]}"


@dataclass(frozen=True)
class Group:
    """The cells that rest on one explanation, and the job that makes it (None if no cell needs the map)."""

    explain: StudyJob | None
    scores: tuple[StudyJob, ...]


class StudyPlan(Frozen):
    """Every axis of a study, resolved; `source` is the digest of the study file it was made from."""

    name: str
    tasks: tuple[PlannedTask, ...]
    explainers: tuple[PlannedThing, ...]
    metrics: tuple[PlannedThing, ...]
    seeds: tuple[int, ...]
    threads: int
    shard_size: Positive | None = None
    device: str | None = None
    keep_explanations: bool = True
    skipped: tuple[dict[str, str], ...] = ()
    seconds: float | None = None
    source: str = ""

    # --- jobs ---------------------------------------------------------------------------------------

    def size(self, task: PlannedTask) -> int:
        """Rows per shard."""
        return min(self.shard_size or task.samples, task.samples)

    def parts(self, task: PlannedTask) -> Iterator[tuple[int, int]]:
        """The shards of a task, as ranges of its rows."""
        size = self.size(task)
        for start in range(0, task.samples, size):
            yield start, min(start + size, task.samples)

    def applicable(self, task: PlannedTask, what: Literal["explainer", "metric"]) -> list[PlannedThing]:
        """The explainers or metrics that apply to a task."""
        skip = {skipped[what] for skipped in self.skipped if skipped["task"] == task.label}
        axis = self.explainers if what == "explainer" else self.metrics
        return [thing for thing in axis if thing.label not in skip]

    def groups(self) -> Iterator[Group]:
        """All cells, by the explanation they rest on; a task after the other, a shard after the other."""
        for task in self.tasks:
            metrics = self.applicable(task, "metric")
            prepared = {
                (metric.label, seed): tuple(self.preparation(task, one).hash for one in facts)
                for metric in metrics
                for seed, facts in zip(self.seeds, metric.prepares, strict=True)
            }
            for shard in self.parts(task):
                for explainer in self.applicable(task, "explainer"):
                    # maps that do not follow the seed serve all seeds
                    drawn = task.draws[explainer.label]
                    for seed, seeds in [(s, (s,)) for s in self.seeds] if drawn else [(0, self.seeds)]:
                        hash = self._hash(task, shard=shard, explainer=explainer, kind="explain", seed=seed)
                        explain = StudyJob(hash, "explain", task, shard, seed, explainer)
                        scores = tuple(
                            self._cell(explain, metric, s, prepared[metric.label, s])
                            for metric in metrics
                            for s in seeds
                        )
                        needed = any(metric.evaluates == "map" for metric in metrics)
                        yield Group(explain if needed else None, scores)

    def _cell(
        self, explain: StudyJob, metric: PlannedThing, seed: int, prepared: tuple[str, ...]
    ) -> StudyJob:
        of_map = metric.evaluates == "map"
        about = {"shard": explain.shard, "explainer": explain.explainer, "metric": metric}
        return replace(
            explain,
            hash=self._hash(explain.task, kind="score", seed=seed, **about),
            needs=(*prepared, explain.hash) if of_map else prepared,
            kind="score",
            seed=seed,
            metric=metric,
        )

    def preparations(self) -> Iterator[StudyJob]:
        """What is estimated once per task, each once."""
        for task in self.tasks:
            metrics = self.applicable(task, "metric")
            facts = [facts for metric in metrics for of_seed in metric.prepares for facts in of_seed]
            yield from {job.hash: job for job in (self.preparation(task, one) for one in facts)}.values()

    def preparation(self, task: PlannedTask, facts: Mapping[str, Any]) -> StudyJob:
        """The job that makes one preparation."""
        hash = self._hash(task, kind="prepare", facts=dict(facts))
        return StudyJob(hash, "prepare", task, (0, task.samples), facts=facts)

    def cells(self) -> Iterator[StudyJob]:
        """Every cell."""
        for group in self.groups():
            yield from group.scores

    def jobs(self) -> Iterator[StudyJob]:
        """Every job, none before one that it needs."""
        yield from self.preparations()
        for group in self.groups():
            if group.explain is not None:
                yield group.explain
            yield from group.scores

    @property
    def uncached(self) -> list[str]:
        """What may change unnoticed, and so is computed at every run."""
        things: list[Planned] = [*self.tasks, *self.explainers, *self.metrics]
        return [thing.label for thing in things if not thing.cached]

    @property
    def imports(self) -> tuple[str, ...]:
        """The user's own modules that explainers and metrics come from."""
        return tuple(sorted({name for thing in [*self.explainers, *self.metrics] for name in thing.modules}))

    def settings(self, job: StudyJob) -> dict[str, Any]:
        """Everything that decided a cell, as plain data."""
        assert job.explainer is not None
        assert job.metric is not None
        decided = {"explainer": job.explainer.content, "metric": job.metric.content}
        return {**self._where(job.task), "shard": list(job.shard), "seed": job.seed, **decided}

    def _hash(self, task: PlannedTask, **about: Any) -> str:
        plain = {name: one.digest if isinstance(one, PlannedThing) else one for name, one in about.items()}
        return content_hash({**self._where(task), **plain})

    def _where(self, task: PlannedTask) -> dict[str, Any]:
        plan = {"rows": task.rows, "threads": self.threads}
        return {"task": task.digest, "plan": plan, "device": (self.device or "cpu").partition(":")[0]}

    @cached_property
    def digest(self) -> str:
        """What the plan is known by: another study, or another version of it, has another."""
        return content_hash(self.model_dump(mode="json", exclude={"source"}))


# --- as a file --------------------------------------------------------------------------------------------


def write_plan(plan: StudyPlan, store: Store) -> None:
    """Make a plan the folder's own."""
    store.write_json(FILE, plan.model_dump(mode="json"), KIND, FORMAT, plan.digest)


def read_plan(store: Store) -> StudyPlan:
    """The plan of a folder; FormatError where there is none, or it is damaged or of another version."""
    refuse_other_versions(store)
    made = store.exists("study.yaml")
    again = "veridical resume makes it again" if made else "there is no study.yaml to make it from"
    try:
        plan = StudyPlan.model_validate(store.read_json(FILE, KIND, FORMAT))
        next(plan.groups(), None)  # what fits together is found by using it
        return plan
    except FormatError as error:
        raise FormatError(f"{error}; {again}") from None
    except (ValueError, LookupError, TypeError, ArithmeticError):
        raise FormatError(f"{store.folder}/{FILE} is damaged: it is no plan of a study; {again}") from None
    except FileNotFoundError:
        raise FormatError(f"{store.folder} holds no study (there is no {FILE}); {again}") from None


def refuse_other_versions(store: Store) -> None:
    """Refuse a folder that another version of veridical made, before anything in it is replaced."""
    found = FORMAT
    with suppress(FileNotFoundError, ValueError, AttributeError):
        found = json.loads(store.read(FILE)).get("format", FORMAT)
    if found != FORMAT:
        raise FormatError(
            f"{store.folder} holds a study of another version of veridical (its plan has format {found}, "
            f"this version reads {FORMAT}): run it again in a folder of its own"
        )


# --- from a study file ------------------------------------------------------------------------------------


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run with the study's threads, and put the caller's back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Thing = TypeVar("Thing", Explainer, AnyMetric)


def make_plan(file: StudyFile, allow_code: bool = False) -> StudyPlan:
    """Resolve a study; mistakes are reported with their line of the file."""
    spec, grid = file.spec, expand(file)
    explainers = {c.label: _at(file, c, make_explainer, allow_code) for c in grid["explainers"]}
    metrics = {c.label: _at(file, c, make_metric, allow_code) for c in grid["metrics"]}
    grid["explainers"], explainers = _by_registered_name(grid["explainers"], explainers)
    grid["metrics"], metrics = _by_registered_name(grid["metrics"], metrics)
    tasks: list[PlannedTask] = []
    skipped: list[dict[str, str]] = []
    with torch_threads(spec.plan.threads):
        for choice in grid["tasks"]:
            planned, task = _at(file, choice, _planned_task, allow_code, file, explainers)
            tasks.append(planned)
            skipped += _skipped(choice.label, task, explainers, metrics)
    return StudyPlan(
        **spec.model_dump(include={"name", "seeds", "shard_size", "device", "keep_explanations"}),
        tasks=tuple(tasks),
        explainers=_things(file, grid["explainers"], explainers),
        metrics=_things(file, grid["metrics"], metrics),
        threads=spec.plan.threads,
        skipped=tuple(skipped),
        seconds=spec.limits.seconds,
        source=content_hash(file.text),
    )


def _by_registered_name(
    axis: Sequence[Choice], made: dict[str, Thing]
) -> tuple[tuple[Choice, ...], dict[str, Thing]]:
    """Classes of the user's under the name they register, unless the file or another gives a label."""
    choices: list[Choice] = []
    found: dict[str, Thing] = {}
    for choice in axis:
        thing, label = made[choice.label], choice.label
        own, bracket, settings = label.partition(" (")
        if choice.code is not None and own == type(thing).__name__:
            label = f"{thing.name}{bracket}{settings}"
        label = choice.label if label in made or label in found else label
        choices.append(choice.model_copy(update={"label": label}))
        found[label] = thing
    return tuple(choices), found


def _things(
    file: StudyFile, axis: Sequence[Choice], made: Mapping[str, Explainer | AnyMetric]
) -> tuple[PlannedThing, ...]:
    found: dict[str, PlannedThing] = {}
    for choice in axis:
        thing = made[choice.label]
        about = identify(thing, choice)
        if isinstance(thing, AnyMetric):
            prepares = [preparations(thing, seed) for seed in file.spec.seeds]
            about |= {"evaluates": "map" if isinstance(thing, Metric) else "method", "prepares": prepares}
        planned = PlannedThing(choice=choice, **about)
        if planned.digest in found:
            # two labels for the same thing would be one cell under two names
            same = found[planned.digest].label
            raise file.error(choice.place, f"'{choice.label}' is the same as '{same}'")
        found[planned.digest] = planned
    return tuple(found.values())


def _planned_task(
    choice: Choice, allow_code: bool, file: StudyFile, explainers: Mapping[str, Explainer]
) -> tuple[PlannedTask, Task]:
    spec = file.spec
    task = load_task(choice, spec.plan.rows, spec.plan.threads, spec.device, allow_code)
    digest, cached = identify_task(task, choice)
    planned = PlannedTask(
        choice=choice,
        digest=digest,
        cached=cached,
        samples=len(task),
        rows=task.predictor.rows,
        draws={label: explainer._draws_on(task) for label, explainer in explainers.items()},
    )
    return planned, task


def _skipped(
    label: str, task: Task, explainers: Mapping[str, Explainer], metrics: Mapping[str, AnyMetric]
) -> list[dict[str, str]]:
    """What does not apply to a task is no failure of a cell: it is known and reported before."""
    return [
        {"task": label, "explainer": "", "metric": "", what: name, "reason": reason}
        for what, things in (("explainer", explainers), ("metric", metrics))
        for name, thing in things.items()
        if (reason := thing.inapplicable_reason(task)) is not None
    ]


def _at(file: StudyFile, choice: Choice, make: Callable[..., Any], *rest: Any) -> Any:
    """Make something, and report what goes wrong with its line of the file."""
    try:
        return make(choice, *rest)
    except (VeridicalError, TypeError) as error:  # or a class of the user's that does not take these settings
        raise file.error(choice.place, f"{choice.label}: {error}") from error
