"""The plan of a study: what each axis holds, and from that every job, made one after the other when asked.

A job is known by the content hash of what decides its result: version and settings of explainer and metric,
content of the task, chunk plan, seed, rows. Labels are not among them, so renaming something computes nothing
again. The product of the axes is never written out; the plan's file grows with their sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from pydantic import Field

from veridical.errors import FormatError, InputError, VeridicalError
from veridical.explainers import Explainer
from veridical.jobs import Job, Store, content_hash
from veridical.metrics import AnyMetric, Metric
from veridical.study.preparations import preparations
from veridical.study.resolve import identify, identify_task, is_ranged, load_task, make_explainer, make_metric
from veridical.study.spec import Frozen
from veridical.study.study_file import Choice, StudyFile, expand
from veridical.values.task import Task

FORMAT = 3
KIND = "plan"
FILE = "plan.json"


@dataclass(frozen=True)
class StudyJob(Job):
    """One piece of a study.

    `prepare` estimates something once from a whole task that every shard and explainer uses (a fine-tuned
    model, a noise path); `explain` makes the maps of one explainer on one shard, which serve every metric;
    `score` is one cell. Explainer and metric are named by their labels in the plan, the shard by its rows
    [start, stop); `facts` says what is prepared.
    """

    kind: Literal["prepare", "explain", "score"] = "score"
    task: str = ""
    shard: tuple[int, int] = (0, 0)
    seed: int = 0
    explainer: str = ""
    metric: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def samples(self) -> int:
        """Rows of the task that this job works on."""
        return self.shard[1] - self.shard[0]

    def __str__(self) -> str:
        name = " / ".join(filter(None, [self.task, self.explainer, self.metric, f"seed {self.seed}"]))
        return f"{self.kind} {name}, rows {self.shard[0]} to {self.shard[1]}"


class PlannedTask(Frozen):
    """A task with the digest of its content, and which explainers draw on it at random."""

    choice: Choice
    digest: str
    cached: bool
    samples: int
    rows: int
    ranged: bool
    draws: dict[str, bool]

    @property
    def label(self) -> str:
        return self.choice.label


class PlannedThing(Frozen):
    """An explainer or metric with what its hash says; `prepares`: seed by seed, what it needs first."""

    choice: Choice
    content: dict[str, Any]
    cached: bool
    judges: Literal["", "map", "method"] = ""
    prepares: tuple[tuple[dict[str, Any], ...], ...] = ()

    @property
    def label(self) -> str:
        return self.choice.label

    @cached_property
    def digest(self) -> str:
        return content_hash(self.content)


@dataclass(frozen=True)
class Group:
    """The cells that rest on one explanation, and the job that makes it (None if no cell needs the map)."""

    explain: StudyJob | None
    scores: tuple[StudyJob, ...]


class StudyPlan(Frozen):
    """Every axis of a study, resolved."""

    name: str
    tasks: tuple[PlannedTask, ...]
    explainers: tuple[PlannedThing, ...]
    metrics: tuple[PlannedThing, ...]
    seeds: tuple[int, ...]
    threads: int
    shards: int | None = None
    shard_size: int | None = None
    device: str | None = None
    keep_explanations: bool = True
    imports: tuple[str, ...] = ()
    skipped: tuple[dict[str, str], ...] = ()
    resources: dict[str, float] = Field(default_factory=dict)
    seconds: float | None = None
    memory_mib: int | None = None

    # --- jobs ---------------------------------------------------------------------------------------

    def size(self, task: PlannedTask) -> int:
        """Rows per shard."""
        if self.shards is not None:
            return -(-task.samples // self.shards)
        return min(self.shard_size or task.samples, task.samples)

    def parts(self, task: PlannedTask) -> Iterator[tuple[int, int]]:
        """The shards of a task, as ranges of its rows."""
        size = self.size(task)
        for start in range(0, task.samples, size):
            yield start, min(start + size, task.samples)

    def groups(self) -> Iterator[Group]:
        """All cells, by the explanation they rest on; a task after the other, a shard after the other."""
        skip = {(s["task"], s["explainer"], s["metric"]) for s in self.skipped}
        for task in self.tasks:
            metrics = [m for m in self.metrics if (task.label, "", m.label) not in skip]
            explainers = [e for e in self.explainers if (task.label, e.label, "") not in skip]
            prepared = {
                (metric.label, seed): tuple(
                    self.preparation(task, facts).hash for facts in metric.prepares[i]
                )
                for metric in metrics
                for i, seed in enumerate(self.seeds)
            }
            for shard in self.parts(task):
                for explainer in explainers:
                    yield from self._groups_of(task, shard, explainer, metrics, prepared)

    def _groups_of(
        self,
        task: PlannedTask,
        shard: tuple[int, int],
        explainer: PlannedThing,
        metrics: list[PlannedThing],
        prepared: Mapping[tuple[str, int], tuple[str, ...]],
    ) -> Iterator[Group]:
        # maps that do not follow the seed serve all seeds
        rounds = [(s, (s,)) for s in self.seeds] if task.draws[explainer.label] else [(0, self.seeds)]
        base = {**self._where(task), "shard": shard, "explainer": explainer.digest}
        named: dict[str, Any] = {"task": task.label, "shard": shard, "explainer": explainer.label}
        for own_seed, seeds in rounds:
            explain = StudyJob(
                content_hash({**base, "kind": "explain", "seed": own_seed}),
                kind="explain",
                seed=own_seed,
                resources=explainer.choice.resources,
                **named,
            )
            scores = []
            for metric in metrics:
                of_map = metric.judges == "map"
                asked = {} if of_map else explainer.choice.resources
                for seed in seeds:
                    scores.append(
                        StudyJob(
                            content_hash({**base, "kind": "score", "metric": metric.digest, "seed": seed}),
                            needs=(*prepared[metric.label, seed], *((explain.hash,) if of_map else ())),
                            seed=seed,
                            metric=metric.label,
                            resources={**asked, **metric.choice.resources},
                            **named,
                        )
                    )
            needed = any(explain.hash in job.needs for job in scores)
            yield Group(explain if needed else None, tuple(scores))

    def preparations(self) -> Iterator[StudyJob]:
        """What is estimated once per task, each once."""
        skip = {(s["task"], s["metric"]) for s in self.skipped if not s["explainer"]}
        for task in self.tasks:
            metrics = [metric for metric in self.metrics if (task.label, metric.label) not in skip]
            facts = [facts for metric in metrics for of_seed in metric.prepares for facts in of_seed]
            yield from {job.hash: job for job in (self.preparation(task, one) for one in facts)}.values()

    def preparation(self, task: PlannedTask, facts: Mapping[str, Any]) -> StudyJob:
        """The job that makes one preparation; of a task too large to load, from its first shard."""
        hash = content_hash({**self._where(task), "kind": "prepare", "facts": dict(facts)})
        shard = (0, self.size(task) if task.ranged else task.samples)
        return StudyJob(
            hash, kind="prepare", task=task.label, shard=shard, facts=dict(facts), resources=self.resources
        )

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

    def cached(self, job: StudyJob) -> bool:
        """Whether a file under this job's hash can be trusted to be its result."""
        return (
            self.task(job.task).cached
            and (not job.explainer or self.explainer(job.explainer).cached)
            and (not job.metric or self.metric(job.metric).cached)
        )

    def uncached(self) -> list[str]:
        """What cannot be told to have changed, and so is computed at every run."""
        things: list[PlannedTask | PlannedThing] = [*self.tasks, *self.explainers, *self.metrics]
        return [thing.label for thing in things if not thing.cached]

    def settings(self, job: StudyJob) -> dict[str, Any]:
        """Everything that decided a cell, as plain data."""
        return {
            **self._where(self.task(job.task)),
            "shard": list(job.shard),
            "seed": job.seed,
            "explainer": self.explainer(job.explainer).content,
            "metric": self.metric(job.metric).content,
        }

    def _where(self, task: PlannedTask) -> dict[str, Any]:
        plan = {"rows": task.rows, "threads": self.threads}
        return {"task": task.digest, "plan": plan, "device": (self.device or "cpu").partition(":")[0]}

    # --- by label -----------------------------------------------------------------------------------

    def task(self, label: str) -> PlannedTask:
        """The task of this label."""
        return _labelled("task", self.tasks, label)

    def explainer(self, label: str) -> PlannedThing:
        """The explainer of this label."""
        return _labelled("explainer", self.explainers, label)

    def metric(self, label: str) -> PlannedThing:
        """The metric of this label."""
        return _labelled("metric", self.metrics, label)

    @cached_property
    def digest(self) -> str:
        """What the plan is known by: another study, or another version of it, has another."""
        return content_hash(self.model_dump(mode="json"))


P = TypeVar("P", PlannedTask, PlannedThing)


def _labelled(kind: str, axis: tuple[P, ...], label: str) -> P:
    for thing in axis:
        if thing.label == label:
            return thing
    raise InputError(f"the plan has no {kind} '{label}'")


# --- as a file --------------------------------------------------------------------------------------------


def write_plan(plan: StudyPlan, store: Store) -> None:
    """Make a plan the folder's own."""
    store.write_json(FILE, plan.model_dump(mode="json"), KIND, FORMAT, plan.digest)


def read_plan(store: Store) -> StudyPlan:
    """The plan of a folder; FormatError where it is not whole, or of version 0.2."""
    refuse_old(store)
    try:
        return StudyPlan.model_validate(store.read_json(FILE, KIND, FORMAT))
    except FileNotFoundError:
        if not store.exists("study.yaml"):
            raise FormatError(f"{store.url} holds no study (there is no {FILE})") from None
        raise FormatError(f"{store.url} lacks its plan; veridical resume makes it again") from None


def refuse_old(store: Store) -> None:
    """Say that a folder was made by version 0.2, whose files have other names and headers."""
    found = None
    with suppress(FileNotFoundError, ValueError, AttributeError):
        found = json.loads(store.read(FILE)).get("format")
    if isinstance(found, int) and found < FORMAT:
        raise FormatError(
            f"{store.url} holds a study of veridical 0.2, which this version cannot read: run it again in a "
            "folder of its own"
        )


# --- from a study file ------------------------------------------------------------------------------------


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Run with the study's threads, and put the caller's back."""
    before = torch.get_num_threads()
    try:
        if count is not None and count != before:
            torch.set_num_threads(count)
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def make_plan(file: StudyFile, allow_code: bool = False) -> StudyPlan:
    """Resolve a study; mistakes are told with the line of the file they are in."""
    spec, grid = file.spec, expand(file)
    explainers = {c.label: _at(file, c, make_explainer, allow_code) for c in grid.explainers}
    metrics = {c.label: _at(file, c, make_metric, allow_code) for c in grid.metrics}
    identities = {
        (*c.place, c.label): identify(made[c.label], c)
        for made, axis in ((explainers, grid.explainers), (metrics, grid.metrics))
        for c in axis
    }
    tasks, skipped = [], []
    with torch_threads(spec.plan.threads):
        for choice in grid.tasks:
            planned, task = _at(file, choice, _planned_task, allow_code, file, explainers)
            tasks.append(planned)
            skipped += _skipped(choice.label, task, explainers, metrics)

    def things(axis: tuple[Choice, ...], **more: Any) -> Iterator[PlannedThing]:
        seen: dict[str, str] = {}
        for choice in axis:
            known = identities[(*choice.place, choice.label)]
            own = {name: make(metrics[choice.label]) for name, make in more.items()}
            made = PlannedThing(choice=choice, content=dict(known.content), cached=known.cached, **own)
            if made.digest in seen:
                # two labels for the same thing would be one cell under two names
                raise file.error(choice.place, f"'{choice.label}' is the same as '{seen[made.digest]}'")
            seen[made.digest] = choice.label
            yield made

    return StudyPlan(
        name=spec.name,
        tasks=tuple(tasks),
        explainers=tuple(things(grid.explainers)),
        metrics=tuple(
            things(
                grid.metrics,
                judges=lambda metric: "map" if isinstance(metric, Metric) else "method",
                prepares=lambda metric: tuple(tuple(preparations(metric, seed)) for seed in grid.seeds),
            )
        ),
        seeds=grid.seeds,
        threads=spec.plan.threads,
        shards=spec.shards,
        shard_size=spec.shard_size,
        device=spec.device,
        keep_explanations=spec.keep_explanations,
        imports=tuple(sorted({module for known in identities.values() for module in known.modules})),
        skipped=tuple(skipped),
        resources=spec.resources.given(),
        seconds=spec.limits.seconds,
        memory_mib=spec.limits.memory_mib,
    )


def _planned_task(
    choice: Choice, allow_code: bool, file: StudyFile, explainers: dict[str, Explainer]
) -> tuple[PlannedTask, Task]:
    spec, ranged, first = file.spec, is_ranged(choice, allow_code), None
    if ranged:
        assert choice.samples is not None
        size = spec.shard_size or -(-choice.samples // (spec.shards or 1))
        first = (0, min(size, choice.samples))
    how = {"threads": spec.plan.threads, "device": spec.device, "allow_code": allow_code}
    task = load_task(choice, rows=spec.plan.rows, shard=first, **how)  # type: ignore[arg-type]
    digest, cached = identify_task(None if ranged else task, choice)
    planned = PlannedTask(
        choice=choice,
        digest=digest,
        cached=cached,
        samples=choice.samples if ranged and choice.samples is not None else len(task),
        rows=task.predictor.rows,
        ranged=ranged,
        draws={label: explainer._draws_on(task) for label, explainer in explainers.items()},
    )
    return planned, task


def _skipped(
    label: str, task: Task, explainers: dict[str, Explainer], metrics: dict[str, AnyMetric]
) -> list[dict[str, str]]:
    """What does not apply to a task is no failure of a cell: it is known before, and said."""
    found = []
    for who, explainer in explainers.items():
        if (reason := explainer.inapplicable_reason(task)) is not None:
            found.append({"task": label, "explainer": who, "metric": "", "reason": reason})
    for what, metric in metrics.items():
        if (reason := metric.inapplicable_reason(task)) is not None:
            found.append({"task": label, "explainer": "", "metric": what, "reason": reason})
    return found


def _at(file: StudyFile, choice: Choice, make: Any, *rest: Any) -> Any:
    """Make something, and tell what goes wrong with the line that asked for it."""
    try:
        return make(choice, *rest)
    except (VeridicalError, TypeError) as error:  # or a class of the user's that does not take these settings
        raise file.error(choice.place, f"{choice.label}: {error}") from error
