"""The plan of a study: what each axis holds, and from that every job, made one after the other when asked.

Addresses are digests of what decides a result: version and settings of explainer and metric, content of the
task, chunk plan, seed, rows. Labels are not among them, so renaming something computes nothing again. The
product of the axes is never written out; the plan's file grows with their sum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from veridical.core import files
from veridical.errors import FormatError, InputError
from veridical.study.cells import Job
from veridical.study.folder import PLANS, Folder
from veridical.study.grid import Choice

FORMAT = 2
KIND = "plan"
CURRENT = "plan.json"


def digest_of(content: Any) -> str:
    """A short digest of plain data."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class PlannedTask:
    """A task with the digest of its content, and which explainers draw on it at random."""

    choice: Choice
    digest: str
    cached: bool
    samples: int
    rows: int
    ranged: bool
    draws: Mapping[str, bool]

    @property
    def label(self) -> str:
        return self.choice.label


@dataclass(frozen=True)
class PlannedThing:
    """An explainer or metric with what its address says; `prepares`: seed by seed, what it needs first."""

    choice: Choice
    content: Mapping[str, Any]
    cached: bool
    judges: str = ""
    prepares: tuple[tuple[Mapping[str, Any], ...], ...] = ()

    @property
    def label(self) -> str:
        return self.choice.label


@dataclass(frozen=True)
class Group:
    """The cells that rest on one explanation, and the job that makes it (None if no cell needs the map)."""

    explain: Job | None
    scores: tuple[Job, ...]


@dataclass(frozen=True)
class StudyPlan:
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
    skipped: tuple[Mapping[str, str], ...] = ()
    resources: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)

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
        things = {id(t): digest_of(t.content) for t in (*self.explainers, *self.metrics)}
        for task in self.tasks:
            metrics = [m for m in self.metrics if (task.label, "", m.label) not in skip]
            explainers = [e for e in self.explainers if (task.label, e.label, "") not in skip]
            prepared = {
                (m.label, seed): tuple(self.preparation(task, facts).address for facts in m.prepares[i])
                for m in metrics
                for i, seed in enumerate(self.seeds)
            }
            for shard in self.parts(task):
                for explainer in explainers:
                    yield from self._groups_of(task, shard, explainer, metrics, things, prepared)

    def _groups_of(
        self,
        task: PlannedTask,
        shard: tuple[int, int],
        explainer: PlannedThing,
        metrics: list[PlannedThing],
        things: Mapping[int, str],
        prepared: Mapping[tuple[str, int], tuple[str, ...]],
    ) -> Iterator[Group]:
        # maps that do not follow the seed serve all seeds
        rounds = [(s, (s,)) for s in self.seeds] if task.draws[explainer.label] else [(0, self.seeds)]
        base = {**self._where(task), "shard": shard, "explainer": things[id(explainer)]}
        for own_seed, seeds in rounds:
            explain = Job(
                "explain",
                digest_of({**base, "kind": "explain", "seed": own_seed}),
                task.label,
                shard,
                own_seed,
                explainer.label,
                resources=explainer.choice.resources,
            )
            scores = []
            for metric in metrics:
                of_map = metric.judges == "map"
                for seed in seeds:
                    about = {**base, "kind": "score", "metric": things[id(metric)], "seed": seed}
                    needs = (*prepared[metric.label, seed], *((explain.address,) if of_map else ()))
                    asked = {**explainer.choice.resources, **metric.choice.resources}
                    scores.append(
                        Job(
                            "score",
                            digest_of(about),
                            task.label,
                            shard,
                            seed,
                            explainer.label,
                            metric.label,
                            needs,
                            resources=metric.choice.resources if of_map else asked,
                        )
                    )
            needed = any(explain.address in job.needs for job in scores)
            yield Group(explain if needed else None, tuple(scores))

    def address(self, job: Job) -> str:
        """The address this plan gives to a job, worked out anew: a job of another plan has another."""
        task = self.task(job.task)
        if job.kind == "prepare":
            return self.preparation(task, job.facts).address
        assert job.explainer is not None
        about = {**self._where(task), "shard": job.shard, "kind": job.kind, "seed": job.seed}
        about["explainer"] = digest_of(self.explainer(job.explainer).content)
        if job.metric is not None:
            about["metric"] = digest_of(self.metric(job.metric).content)
        return digest_of(about)

    def preparations(self) -> Iterator[Job]:
        """What is estimated once per task, each once."""
        skip = {(s["task"], s["metric"]) for s in self.skipped if not s["explainer"]}
        seen: set[str] = set()
        for task in self.tasks:
            for metric in self.metrics:
                if (task.label, metric.label) in skip:
                    continue
                for facts in (facts for of_seed in metric.prepares for facts in of_seed):
                    job = self.preparation(task, facts)
                    if job.address not in seen:
                        seen.add(job.address)
                        yield job

    def preparation(self, task: PlannedTask, facts: Mapping[str, Any]) -> Job:
        """The job that makes one preparation; of a task too large to load, from its first shard."""
        address = digest_of({**self._where(task), "kind": "prepare", "facts": dict(facts)})
        shard = (0, self.size(task) if task.ranged else task.samples)
        return Job("prepare", address, task.label, shard, facts=dict(facts), resources=self.resources)

    def cells(self) -> Iterator[Job]:
        """Every cell."""
        for group in self.groups():
            yield from group.scores

    def cached(self, job: Job) -> bool:
        """Whether a file under this job's address can be trusted to be its result."""
        return (
            self.task(job.task).cached
            and (job.explainer is None or self.explainer(job.explainer).cached)
            and (job.metric is None or self.metric(job.metric).cached)
        )

    def uncached(self) -> list[str]:
        """What cannot be told to have changed, and so is computed at every run."""
        things: list[PlannedTask | PlannedThing] = [*self.tasks, *self.explainers, *self.metrics]
        return [thing.label for thing in things if not thing.cached]

    def settings(self, job: Job) -> dict[str, Any]:
        """Everything that decided a cell, as plain data."""
        assert job.explainer is not None
        assert job.metric is not None
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

    @property
    def labels(self) -> list[str]:
        """What every task, explainer and metric is called."""
        return [thing.choice.label for axis in (self.tasks, self.explainers, self.metrics) for thing in axis]

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

    # --- as a file ----------------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """What the plan is known by: another study, or another version of it, has another."""
        return digest_of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StudyPlan:
        """Back from plain data."""

        def thing(made: Mapping[str, Any]) -> PlannedThing:
            prepares = tuple(tuple(facts) for facts in made["prepares"])
            return PlannedThing(**{**made, "choice": Choice.from_json(made["choice"]), "prepares": prepares})

        return cls(
            **{
                **data,
                "tasks": tuple(
                    PlannedTask(**{**t, "choice": Choice.from_json(t["choice"])}) for t in data["tasks"]
                ),
                "explainers": tuple(map(thing, data["explainers"])),
                "metrics": tuple(map(thing, data["metrics"])),
                "seeds": tuple(data["seeds"]),
                "imports": tuple(data["imports"]),
                "skipped": tuple(data["skipped"]),
            }
        )


P = TypeVar("P", PlannedTask, PlannedThing)


def _labelled(kind: str, axis: tuple[P, ...], label: str) -> P:
    for thing in axis:
        if thing.label == label:
            return thing
    raise InputError(f"the plan has no {kind} '{label}'")


def write_plan(plan: StudyPlan, folder: Folder) -> None:
    """Keep a plan under its digest, where workers find it, and make it the folder's current one."""
    folder.rewrite(f"{PLANS}/{plan.digest}.json", files.pack_json(plan.to_json(), KIND, FORMAT, plan.digest))
    current = {"plan": plan.digest, "study": plan.name}
    folder.rewrite(CURRENT, files.pack_json(current, "current plan", FORMAT))
    for old in folder.names(PLANS) - {plan.digest}:
        folder.delete(f"{PLANS}/{old}.json")


def read_plan(folder: Folder, digest: str | None = None) -> StudyPlan:
    """The plan of this digest, or the folder's current one; FormatError where it is not whole."""
    try:
        if digest is None:
            said = files.unpack_json(folder.read(CURRENT), f"{folder.url}/{CURRENT}", "current plan", FORMAT)
            digest = str(said["plan"])
        name = f"{PLANS}/{digest}.json"
        data = files.unpack_json(folder.read(name), f"{folder.url}/{name}", KIND, FORMAT, digest)
    except FileNotFoundError as error:
        if not folder.exists("study.yaml"):
            raise FormatError(f"{folder.url} holds no study (there is no {CURRENT})") from None
        raise FormatError(f"{folder.url} lacks its plan ({error}); veridical resume makes it again") from None
    return StudyPlan.from_json(data)
